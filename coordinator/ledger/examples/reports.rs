//! How many reports one core applies: `cargo run --release -p leasehold-ledger
//! --example reports`. Sessions × keys leases; every entry carries 2,048 reports.
//! The figures are of processor time, so that a busy machine does not blur them.

use std::hint::black_box;

use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SpentAge, Sync},
    policy::{Kind, Policy},
};

const REPORTS_PER_ENTRY: usize = 2_048;

/// Nanoseconds that this thread has run (Linux).
fn cpu_ns() -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().unwrap_or_default().parse()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("sessions  keys  apply M/s  decode M/s  encode M/s  freeze µs  restore ms");
    for (sessions, keys) in [
        (1, 64),
        (8, 256),
        (64, 16),
        (64, 256),
        (64, 2_048),
        (512, 256),
    ] {
        let (mut ledger, syncs) = prepare(sessions, keys)?;
        let mut now_us = ledger.now_us();
        let mut entries = Vec::new();
        let mut spent = vec![0; syncs.len()];
        let mut reports = 0;
        while reports < 1_000_000 {
            now_us += 2_000;
            let mut entry = Entry {
                now_us,
                ..Entry::default()
            };
            let mut count = 0;
            while count < REPORTS_PER_ENTRY {
                let place = (reports + count) / keys % syncs.len();
                let mut sync = syncs[place].clone();
                spent[place] += 1;
                sync.seq = spent[place];
                for report in &mut sync.reports {
                    report.spent_total = spent[place];
                }
                count += sync.reports.len();
                entry.syncs.push(sync);
            }
            reports += count;
            entries.push(entry);
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = |from_ns: u64, to_ns: u64| reports as f64 * 1e3 / (to_ns - from_ns) as f64;
        let since = cpu_ns()?;
        let bytes: Vec<Vec<u8>> = entries.iter().map(Entry::encode).collect();
        let encode = rate(since, cpu_ns()?);
        let since = cpu_ns()?;
        for bytes in &bytes {
            black_box(Entry::decode(bytes)?);
        }
        let decode = rate(since, cpu_ns()?);
        let since = cpu_ns()?;
        for entry in &entries {
            black_box(ledger.apply(ledger.last_index() + 1, entry));
        }
        let apply = rate(since, cpu_ns()?);
        let since = cpu_ns()?;
        let frozen = ledger.freeze();
        let freeze_us = (cpu_ns()? - since) / 1_000;
        let bytes: Vec<u8> = frozen.chunks().flatten().collect();
        let since = cpu_ns()?;
        black_box(Ledger::decode(bytes.as_slice())?);
        let restore_ms = (cpu_ns()? - since) / 1_000_000;
        println!(
            "{sessions:8} {keys:5} {apply:10.2} {decode:11.2} {encode:11.2} {freeze_us:10} {restore_ms:11}"
        );
    }
    Ok(())
}

/// A ledger in which every session holds a lease of every key, and one sync of
/// each session.
fn prepare(
    sessions: usize,
    keys: usize,
) -> Result<(Ledger, Vec<Sync>), Box<dyn std::error::Error>> {
    let policy = Policy {
        public_name: "orders".to_owned(),
        ..Policy::new(Kind::SlidingWindow {
            limit: 1 << 50,
            window_us: 1_000_000,
        })
    };
    let ids: Vec<SessionId> = (1..=sessions).map(|id| SessionId(id as u128)).collect();
    let keys: Vec<Key> = (0..keys)
        .map(|number| Key::new(["acme", "orders.read", &format!("user-{number}")]))
        .collect::<Result<_, _>>()?;
    let mut ledger = Ledger::new();
    let open = |id: &SessionId| Command::Open {
        session: *id,
        holder: "gateway".to_owned(),
        identity: String::new(),
    };
    let mut commands: Vec<Command> = ids.iter().map(open).collect();
    commands.push(Command::PutBudget {
        pattern: Pattern::parse("acme/**")?,
        rule: Rule::Inline(policy),
    });
    let grants = ids.iter().flat_map(|session| {
        keys.iter().map(|key| Grant {
            session: *session,
            key: key.clone(),
            units: 1 << 30,
        })
    });
    let grants = grants.collect();
    ledger.apply(
        1,
        &Entry {
            rolls: Vec::new(),
            now_us: 1,
            syncs: Vec::new(),
            commands,
            grants,
        },
    );
    let syncs = ids.iter().map(|session| Sync {
        session: *session,
        seq: 0,
        renew: true,
        close: false,
        reports: keys
            .iter()
            .map(|key| Report {
                key: key.clone(),
                generation: 1,
                last: false,
                spent_total: 0,
                returned_total: 0,
                held: 0,
                overrun_total: 0,
                ages: vec![SpentAge {
                    units: 1,
                    age_us: 500,
                }],
            })
            .collect(),
    });
    Ok((ledger, syncs.collect()))
}
