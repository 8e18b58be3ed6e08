//! What stands twice or in vain in one list of descriptors. Knows one list at a time.

use std::collections::HashMap;

use super::{
    Place,
    descriptor::Descriptor,
    segment::{Value, Wildcard},
};

/// The descriptors of one list, to find what is there twice or in vain. Looks each up, so
/// that a list of any length is read in no time.
#[derive(Default)]
pub(super) struct Siblings {
    places: HashMap<(String, Value), Place>,
    wildcards: HashMap<String, Wildcards>,
}

/// The wildcards of one key, in the order of the file.
#[derive(Default)]
struct Wildcards {
    all: Vec<(Place, Wildcard)>,
    /// The first of each, by where it is in `all`.
    by_place: HashMap<Place, usize>,
    by_parts: HashMap<Vec<String>, usize>,
    by_prefix: HashMap<String, usize>,
}

impl Siblings {
    /// Where the same already stands; otherwise it is noted.
    pub(super) fn same(&mut self, descriptor: &Descriptor, at: Place) -> Option<Place> {
        let entry = (descriptor.key.clone(), descriptor.value.clone());
        if let Some(first) = self.places.get(&entry) {
            return Some(*first);
        }
        self.places.insert(entry, at);
        if let Value::Wildcard(wildcard) = &descriptor.value {
            let of_key = self.wildcards.entry(descriptor.key.clone()).or_default();
            of_key.add(at, wildcard);
        }
        None
    }

    /// A wildcard that takes everything before it comes to this one.
    pub(super) fn before(&self, descriptor: &Descriptor, at: Place) -> Option<(&str, Place)> {
        let wildcards = self.wildcards.get(&descriptor.key)?;
        let found = match &descriptor.value {
            Value::Exact(_) => None,
            Value::Any => wildcards.by_prefix.get("").copied(),
            Value::Wildcard(own) => wildcards.covering(own, at),
        };
        let (place, wildcard) = wildcards.all.get(found?)?;
        Some((wildcard.text(), *place))
    }
}

impl Wildcards {
    fn add(&mut self, at: Place, wildcard: &Wildcard) {
        let place = self.all.len();
        self.by_place.entry(at).or_insert(place);
        self.by_parts
            .entry(wildcard.parts().to_vec())
            .or_insert(place);
        if let Some(prefix) = wildcard.prefix() {
            self.by_prefix.entry(prefix.to_owned()).or_insert(place);
        }
        self.all.push((at, wildcard.clone()));
    }

    /// The first one that surely matches everything that `own` does and comes before it:
    /// it is of the same parts, or all that it asks of a value is to begin with something
    /// with which all values of `own` begin.
    fn covering(&self, own: &Wildcard, at: Place) -> Option<usize> {
        let own_place = *self.by_place.get(&at)?;
        let begins = own.parts().first().map_or("", String::as_str);
        let ends = begins.char_indices().map(|(end, _)| end);
        let prefixes = ends.chain([begins.len()]).map(|end| &begins[..end]);
        prefixes
            .filter_map(|prefix| self.by_prefix.get(prefix))
            .chain(self.by_parts.get(own.parts()))
            .copied()
            .min()
            .filter(|place| *place < own_place)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_looked_up_is_what_would_be_found_one_by_one(
            texts in prop::collection::vec("[ab*]{0,3}\\*[ab]{0,2}", 1..30)
        ) {
            let mut wildcards = Wildcards::default();
            let place = |line: usize| Place { line: line as u64, column: 1 };
            for (line, text) in texts.iter().enumerate() {
                wildcards.add(place(line), &Wildcard::parse(text));
            }
            for (line, (at, own)) in wildcards.all.iter().enumerate() {
                let earlier = wildcards.all[..line].iter();
                let slow = earlier.clone().position(|(_, earlier)| earlier.covers(own));
                prop_assert_eq!(wildcards.covering(own, *at), slow, "{} of {:?}", line, texts);
            }
        }
    }
}
