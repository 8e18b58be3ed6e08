//! Which key has which slot. Knows neither the session nor what is spent.

use std::sync::Arc;

use leasehold_key::Key;
use leasehold_spend::{FailureMode, Line, Slot};
use parking_lot::Mutex;

/// The client's keys: read without a lock, changed under one.
#[derive(Debug)]
pub(crate) struct Registry {
    slots: papaya::HashMap<Key, Arc<Slot>>,
    changes: Mutex<Changes>,
    line: Arc<Line>,
    waiters_max: usize,
    max_wait_ns: u64,
    before_contact: FailureMode,
}

#[derive(Debug, Default)]
struct Changes {
    /// Indexes that were used and are free again.
    free: Vec<u32>,
    next: u32,
    /// Slots that the driver has not adopted yet.
    newcomers: Vec<(Key, Arc<Slot>)>,
}

impl Registry {
    pub(crate) fn new(
        line: Arc<Line>,
        waiters_max: usize,
        max_wait_ns: u64,
        before_contact: FailureMode,
    ) -> Self {
        Self {
            slots: papaya::HashMap::new(),
            changes: Mutex::new(Changes::default()),
            line,
            waiters_max,
            max_wait_ns,
            before_contact,
        }
    }

    pub(crate) fn keys_max(&self) -> u32 {
        self.line.keys_max()
    }

    /// Calls `spend` with the slot of a key in canonical encoding, if it has one.
    #[inline]
    pub(crate) fn with<T>(&self, key: &str, spend: impl FnOnce(&Arc<Slot>) -> T) -> Option<T> {
        self.slots.pin().get(key).map(spend)
    }

    /// How many keys there are.
    pub(crate) fn keys(&self) -> usize {
        self.slots.pin().len()
    }

    /// The key's slot, made if it is new. None when there are as many as may be.
    pub(crate) fn slot(&self, key: &Key) -> Option<Arc<Slot>> {
        self.slot_or_new(key).map(|(slot, _)| slot)
    }

    /// The same, and whether it was made just now.
    pub(crate) fn slot_or_new(&self, key: &Key) -> Option<(Arc<Slot>, bool)> {
        // Eviction takes the same lock: what is found or made here stays in
        // service as long as somebody holds it.
        let mut changes = self.changes.lock();
        if let Some(slot) = self.with(key.as_str(), Arc::clone) {
            return Some((slot, false));
        }
        let index = match changes.free.pop() {
            Some(index) => index,
            None if changes.next < self.keys_max() => {
                changes.next += 1;
                changes.next - 1
            }
            None => return None,
        };
        let line = Arc::clone(&self.line);
        let slot = Arc::new(Slot::new(index, line, self.waiters_max, self.max_wait_ns));
        slot.set_before_contact(self.before_contact);
        changes.newcomers.push((key.clone(), Arc::clone(&slot)));
        self.slots.pin().insert(key.clone(), Arc::clone(&slot));
        Some((slot, true))
    }

    /// Slots that were made since the last call; the driver adopts them.
    pub(crate) fn take_newcomers(&self) -> Vec<(Key, Arc<Slot>)> {
        std::mem::take(&mut self.changes.lock().newcomers)
    }

    /// Takes an idle slot out of service, unless somebody holds a handle. The
    /// driver must forget the index at once if this says so.
    pub(crate) fn evict(&self, key: &str, slot: &Arc<Slot>) -> bool {
        let mut changes = self.changes.lock();
        // The map's, the core's. A request by key that has just found the slot
        // holds none; it finds it evicted, and looks again.
        if Arc::strong_count(slot) > 2 || !slot.evict() {
            return false;
        }
        self.slots.pin().remove(key);
        changes.free.push(slot.index());
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn registry(keys_max: u32) -> Registry {
        Registry::new(
            Arc::new(Line::new(keys_max, || ())),
            4,
            1,
            FailureMode::Closed,
        )
    }

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    #[test]
    fn one_key_has_one_slot() {
        let registry = registry(2);
        let slot = registry.slot(&key("a")).unwrap();
        assert!(Arc::ptr_eq(&slot, &registry.slot(&key("a")).unwrap()));
        assert_eq!(registry.take_newcomers().len(), 1);
        assert!(registry.take_newcomers().is_empty());
    }

    #[test]
    fn keys_are_bounded_and_an_idle_one_makes_room() {
        let registry = registry(1);
        drop(registry.slot(&key("a")).unwrap());
        assert!(registry.slot(&key("b")).is_none());
        let (_, slot) = registry.take_newcomers().pop().unwrap();
        assert!(registry.evict("a", &slot));
        assert!(slot.is_evicted());
        assert!(registry.slot(&key("b")).is_some());
        assert!(registry.with("a", |_| ()).is_none());
    }

    #[test]
    fn a_slot_with_a_handle_stays() {
        let registry = registry(1);
        let handle = registry.slot(&key("a")).unwrap();
        let (_, slot) = registry.take_newcomers().pop().unwrap();
        assert!(!registry.evict("a", &slot));
        drop(handle);
        assert!(registry.evict("a", &slot));
    }
}
