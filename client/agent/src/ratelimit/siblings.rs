//! What stands twice or in vain in one list of descriptors. Knows one list at a time.

use std::collections::HashMap;

use super::{
    Place,
    descriptor::Descriptor,
    segment::{Value, Wildcard},
};

/// The descriptors of one list, to find what is there twice or in vain.
#[derive(Default)]
pub(super) struct Siblings {
    places: HashMap<(String, Value), Place>,
    wildcards: HashMap<String, Vec<(Place, Wildcard)>>,
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
            of_key.push((at, wildcard.clone()));
        }
        None
    }

    /// A wildcard that takes everything before it comes to this one.
    pub(super) fn before(&self, descriptor: &Descriptor, at: Place) -> Option<(&str, Place)> {
        let mut wildcards = self.wildcards.get(&descriptor.key)?.iter();
        let found = match &descriptor.value {
            Value::Exact(_) => None,
            Value::Any => wildcards.find(|(_, wildcard)| wildcard.prefix() == Some("")),
            Value::Wildcard(own) => wildcards
                .take_while(|(place, _)| *place != at)
                .find(|(_, earlier)| earlier.covers(own)),
        };
        found.map(|(place, wildcard)| (wildcard.text(), *place))
    }
}
