//! How much there may be at once: of connections, of those from one address, of anything
//! that is counted. Knows nothing of what is counted.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places of which there are so many.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    most: usize,
}

/// A place that is given back when it is dropped.
#[derive(Debug)]
#[must_use = "a place that is dropped is free again"]
pub struct Place(#[expect(dead_code, reason = "is held")] OwnedSemaphorePermit);

impl Places {
    /// So many places, all of them free.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// None: all are taken.
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(Place(permit))
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.most.saturating_sub(self.free.available_permits())
    }
}

/// How many connections each address has.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
}

/// One connection of an address.
#[derive(Debug)]
pub(crate) struct AddressPlace {
    addresses: Addresses,
    of: IpAddr,
}

impl Addresses {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            counts: Arc::default(),
            most,
        }
    }

    /// None: it has as many as one address may.
    pub(crate) fn take(&self, addr: IpAddr) -> Option<AddressPlace> {
        let of = source(addr);
        let mut counts = self.counts.lock();
        let count = counts.entry(of).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(AddressPlace {
            addresses: self.clone(),
            of,
        })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts.lock();
        if let Some(count) = counts.get_mut(&self.of) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.of);
            }
        }
    }
}

/// Whom an address belongs to: of IPv6, a network of 64 bits is one customer's.
fn source(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => {
            let network = u128::from(addr) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        addr => addr,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_place_is_free_again_once_it_is_dropped() {
        let places = Places::new(2);
        let first = places.take().unwrap();
        let _second = places.take().unwrap();
        assert!(places.take().is_none());
        assert_eq!(places.taken(), 2);
        drop(first);
        assert_eq!(places.taken(), 1);
        assert!(places.take().is_some());
    }

    #[test]
    fn one_address_has_so_many_places_and_a_network_of_64_bits_is_one() {
        let addresses = Addresses::new(1);
        let take = |text: &str| addresses.take(text.parse().unwrap());
        let held = take("10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        assert!(take("::ffff:10.0.0.1").is_none());
        let _other = take("10.0.0.2").unwrap();
        let _six = take("2001:db8:1:2::1").unwrap();
        assert!(take("2001:db8:1:2:ffff::1").is_none());
        assert!(take("2001:db8:1:3::1").is_some());
        drop(held);
        let _again = take("10.0.0.1").unwrap();
        assert_eq!(
            addresses.counts.lock().len(),
            3,
            "what is gone is forgotten"
        );
    }
}
