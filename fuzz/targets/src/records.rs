//! What a replica reads back: entries of the log, and snapshots. Damage is an error,
//! and whatever reads can be applied, written and read again. Knows nothing of files.

use leasehold_ledger::{Ledger, entry::Entry};

/// A replica in these tests takes no more entries.
const ENTRIES: u64 = 64;

/// Entries, each behind its length in two bytes, applied in order.
pub(crate) fn entries(mut bytes: &[u8]) {
    let mut ledger = Ledger::new();
    for index in 1..=ENTRIES {
        let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
            break;
        };
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (entry, rest) = rest.split_at(length);
        bytes = rest;
        if let Ok(entry) = Entry::decode(entry) {
            assert_eq!(Entry::decode(&entry.encode()).as_ref(), Ok(&entry));
            ledger.apply(index, &entry);
            ledger.check().expect("the books stay whole");
        }
    }
    again(&ledger);
}

/// A snapshot.
pub(crate) fn ledger_snapshot(bytes: &[u8]) {
    if let Ok(ledger) = Ledger::decode(bytes) {
        again(&ledger);
    }
}

fn again(ledger: &Ledger) {
    let bytes: Vec<u8> = ledger.freeze().chunks().flatten().collect();
    let read = Ledger::decode(bytes.as_slice()).expect("a ledger reads back");
    assert_eq!(read.digest(), ledger.digest());
}
