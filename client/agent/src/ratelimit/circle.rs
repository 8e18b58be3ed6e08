//! Names that replace each other in a circle. Knows neither rules nor files.

use std::collections::HashMap;

use super::Place;

/// What replaces what, and where that stands.
pub(super) type Edge<'a> = (&'a str, &'a str, Place);

/// The first of the edges that is left when all those are taken away, again and again,
/// which begin at what nobody replaces or end at what replaces nothing: none, if there is
/// no circle. Looks at each edge a few times, however long their chains are.
pub(super) fn in_a_circle<'e, 'a>(edges: &'e [Edge<'a>]) -> Option<&'e Edge<'a>> {
    let mut ends: HashMap<&str, Ends> = HashMap::new();
    for (number, (from, to, _)) in edges.iter().enumerate() {
        ends.entry(from).or_default().out.push(number);
        ends.entry(to).or_default().into.push(number);
    }
    for end in ends.values_mut() {
        (end.out_left, end.into_left) = (end.out.len(), end.into.len());
    }
    let mut is_left = vec![true; edges.len()];
    let mut bare: Vec<&str> = ends
        .iter()
        .filter_map(|(name, end)| end.is_bare().then_some(*name))
        .collect();
    while let Some(name) = bare.pop() {
        let Some(end) = ends.get_mut(name) else {
            continue;
        };
        let (out, into) = (std::mem::take(&mut end.out), std::mem::take(&mut end.into));
        let others = out
            .iter()
            .map(|number| (number, edges[*number].1, false))
            .chain(into.iter().map(|number| (number, edges[*number].0, true)));
        for (number, other, is_out_of_other) in others {
            if !std::mem::replace(&mut is_left[*number], false) {
                continue;
            }
            let Some(other_end) = ends.get_mut(other) else {
                continue;
            };
            let was_bare = other_end.is_bare();
            let left = match is_out_of_other {
                true => &mut other_end.out_left,
                false => &mut other_end.into_left,
            };
            *left = left.saturating_sub(1);
            if !was_bare && other_end.is_bare() {
                bare.push(other);
            }
        }
    }
    edges
        .iter()
        .zip(is_left)
        .find_map(|(edge, is_left)| is_left.then_some(edge))
}

/// The edges of one name.
#[derive(Default)]
struct Ends {
    out: Vec<usize>,
    into: Vec<usize>,
    out_left: usize,
    into_left: usize,
}

impl Ends {
    fn is_bare(&self) -> bool {
        self.out_left == 0 || self.into_left == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// The same, edge by edge.
    fn slowly<'a>(edges: &[Edge<'a>]) -> Option<Edge<'a>> {
        let mut edges = edges.to_vec();
        loop {
            let before = edges.len();
            let replacing: HashSet<&str> = edges.iter().map(|edge| edge.0).collect();
            edges.retain(|edge| replacing.contains(edge.1));
            let replaced: HashSet<&str> = edges.iter().map(|edge| edge.1).collect();
            edges.retain(|edge| replaced.contains(edge.0));
            if edges.len() == before {
                return edges.first().copied();
            }
        }
    }

    const AT: Place = Place { line: 1, column: 1 };

    #[test]
    fn a_long_chain_is_no_circle_until_it_is_closed() {
        let names: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
        let pairs = names.windows(2);
        let mut edges: Vec<Edge<'_>> = pairs.map(|pair| (&*pair[0], &*pair[1], AT)).collect();
        assert_eq!(in_a_circle(&edges), None);
        edges.push((&names[99_999], &names[50_000], AT));
        assert_eq!(in_a_circle(&edges).unwrap().0, "50000");
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_is_left_edge_by_edge(
            pairs in prop::collection::vec(("[a-f]", "[a-f]"), 0..12)
        ) {
            let edges: Vec<Edge<'_>> = pairs.iter().map(|(a, b)| (&**a, &**b, AT)).collect();
            prop_assert_eq!(in_a_circle(&edges).copied(), slowly(&edges));
        }
    }
}
