//! A log with two replicas: every entry goes through its bytes, every invariant is
//! checked after it, and a replica that is restored from a snapshot now and then
//! must never diverge. Knows nothing of what the entries say.

use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    Ledger, Voided,
    entry::{Command, Entry, Report, SessionId, Sync},
    outcome::{Applied, CommandOutcome},
    policy::{Kind, Policy},
};

/// See the module.
pub(crate) struct Log {
    pub(crate) ledger: Ledger,
    replica: Ledger,
    index: u64,
    now_us: u64,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            ledger: Ledger::new(),
            replica: Ledger::new(),
            index: 0,
            now_us: 0,
        }
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// The clock of whoever stamps entries.
    pub(crate) fn now_us(&self) -> u64 {
        self.now_us
    }

    pub(crate) fn advance(&mut self, us: u64) {
        self.now_us += us;
    }

    /// Applies an entry stamped now.
    pub(crate) fn entry(&mut self, mut entry: Entry) -> Applied {
        entry.now_us = self.now_us;
        self.stamped(&entry)
    }

    /// Applies an entry with whatever time it carries.
    pub(crate) fn stamped(&mut self, entry: &Entry) -> Applied {
        self.index += 1;
        let bytes = entry.encode();
        let read = Entry::decode(&bytes).unwrap();
        assert_eq!(read, *entry, "an entry reads back as it was written");
        let applied = self.ledger.apply(self.index, entry);
        self.ledger.check().unwrap();
        let again = self.replica.apply(self.index, &read);
        assert_eq!(applied, again, "replicas answer alike");
        assert_eq!(
            self.ledger.digest(),
            self.replica.digest(),
            "replicas agree"
        );
        assert_eq!(
            self.ledger.digest_at(self.index),
            Some(self.ledger.digest())
        );
        applied
    }

    pub(crate) fn tick(&mut self) -> Applied {
        self.entry(Entry::default())
    }

    pub(crate) fn command(&mut self, command: Command) -> CommandOutcome {
        let entry = Entry {
            commands: vec![command],
            ..Entry::default()
        };
        self.entry(entry).commands.pop().unwrap()
    }

    /// Replaces the replica by one restored from the ledger's snapshot.
    pub(crate) fn restore(&mut self) {
        let bytes = bytes(&self.ledger);
        assert_eq!(
            bytes,
            self::bytes(&self.replica),
            "equal ledgers give equal bytes"
        );
        self.replica = Ledger::decode(bytes.as_slice()).unwrap();
        self.replica.check().unwrap();
        assert_eq!(
            bytes,
            self::bytes(&self.replica),
            "a restored ledger gives the same bytes"
        );
        assert_eq!(self.replica.digest(), self.ledger.digest());
    }

    /// Another cluster begins from a backup: its log and its time go on from there.
    pub(crate) fn begin_from(&mut self, backup: &Ledger, cluster_id: u128, ttl_us: u64) -> Voided {
        let (ledger, voided) = backup.clone().restored(cluster_id, ttl_us);
        ledger.check().unwrap();
        self.index = ledger.last_index();
        self.now_us = ledger.now_us();
        self.replica = ledger.clone();
        self.ledger = ledger;
        self.restore();
        voided
    }

    /// The ledger goes on from the snapshot, as after a restart.
    pub(crate) fn restart(&mut self) {
        self.restore();
        std::mem::swap(&mut self.ledger, &mut self.replica);
    }
}

pub(crate) fn bytes(ledger: &Ledger) -> Vec<u8> {
    ledger.freeze().chunks().flatten().collect()
}

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap()
}

pub(crate) fn policy(kind: Kind) -> Policy {
    Policy {
        public_name: "orders".to_owned(),
        ..Policy::new(kind)
    }
}

pub(crate) fn window(limit: u64, window_us: u64) -> Policy {
    policy(Kind::SlidingWindow { limit, window_us })
}

pub(crate) fn bucket(capacity: u64, refill: u64, refill_period_us: u64) -> Policy {
    policy(Kind::TokenBucket {
        capacity,
        refill,
        refill_period_us,
    })
}

/// A report with nothing in it.
pub(crate) fn report(key: &Key, generation: u64) -> Report {
    Report {
        key: key.clone(),
        generation,
        last: false,
        spent_total: 0,
        returned_total: 0,
        held: 0,
        ages: Vec::new(),
        overrun_total: 0,
    }
}

/// A renewing sync.
pub(crate) fn sync(session: SessionId, seq: u64, reports: Vec<Report>) -> Sync {
    Sync {
        session,
        seq,
        renew: true,
        close: false,
        reports,
    }
}

pub(crate) fn open(session: SessionId) -> Command {
    Command::Open {
        session,
        holder: format!("gw-{}", session.0),
        identity: String::new(),
    }
}

/// A small generator (SplitMix64), so that one number stands for a whole run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}
