//! A map in many small copy-on-write shards, so that a frozen copy costs one
//! reference per shard and a write after it copies one shard at most. Knows
//! nothing of the values.

use std::{
    borrow::Borrow,
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    ops::Bound,
    sync::Arc,
};

use crate::digest;

/// What decides in which shard a key lives. Fixed for ever: the order of a
/// snapshot depends on it.
pub(crate) trait Spread {
    fn spread(&self) -> u64;
}

impl Spread for str {
    fn spread(&self) -> u64 {
        digest::bytes(self.as_bytes())
    }
}

impl Spread for leasehold_key::Key {
    fn spread(&self) -> u64 {
        self.as_str().spread()
    }
}

impl Spread for crate::entry::SessionId {
    fn spread(&self) -> u64 {
        let (upper, lower) = digest::halves(self.0);
        digest::words([upper, lower])
    }
}

type Shard<K, V> = Arc<BTreeMap<K, Arc<V>>>;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Shards<K, V> {
    shards: Vec<Shard<K, V>>,
    len: usize,
}

impl<K: Ord + Clone + Spread, V: Clone> Shards<K, V> {
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            shards: vec![Shard::default(); shards.max(1)],
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn place(&self, spread: u64) -> usize {
        let shards = u64::try_from(self.shards.len()).unwrap_or(u64::MAX);
        usize::try_from(spread.checked_rem(shards).unwrap_or(0)).unwrap_or(0)
    }

    pub(crate) fn get<Q: Ord + Spread + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.shards
            .get(self.place(key.spread()))?
            .get(key)
            .map(AsRef::as_ref)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.place(key.spread());
        let shard = Arc::make_mut(self.shards.get_mut(place)?);
        shard.get_mut(key).map(Arc::make_mut)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        let place = self.place(key.spread());
        if let Some(shard) = self.shards.get_mut(place)
            && Arc::make_mut(shard).insert(key, Arc::new(value)).is_none()
        {
            self.len = self.len.saturating_add(1);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<Arc<V>> {
        let place = self.place(key.spread());
        let removed = Arc::make_mut(self.shards.get_mut(place)?).remove(key)?;
        self.len = self.len.saturating_sub(1);
        Some(removed)
    }

    /// Everything, shard by shard: an order that equal contents share.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards
            .iter()
            .flat_map(|shard| shard.iter())
            .map(|(key, value)| (key, value.as_ref()))
    }

    /// Everything from a bound on, in the order of the keys.
    pub(crate) fn range_from<'a, Q: Ord + ?Sized>(
        &'a self,
        from: Bound<&Q>,
    ) -> impl Iterator<Item = (&'a K, &'a V)>
    where
        K: Borrow<Q>,
    {
        let mut sources: Vec<_> = self
            .shards
            .iter()
            .map(|shard| shard.range::<Q, _>((from, Bound::Unbounded)))
            .collect();
        let mut heads = BinaryHeap::new();
        let mut values = BTreeMap::new();
        for (place, source) in sources.iter_mut().enumerate() {
            if let Some((key, value)) = source.next() {
                heads.push(Reverse((key, place)));
                values.insert(place, value);
            }
        }
        std::iter::from_fn(move || {
            let Reverse((key, place)) = heads.pop()?;
            let value = values.remove(&place)?;
            if let Some((key, value)) = sources.get_mut(place).and_then(Iterator::next) {
                heads.push(Reverse((key, place)));
                values.insert(place, value);
            }
            Some((key, value.as_ref()))
        })
    }
}
