//! How long a busy key lasts when nobody answers any more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use fixture::{Client, MS, grant, policy};
use leasehold_spend::{SECOND, Verdict, message::KeyGrant};

const LIMIT: u64 = 6_000;
/// A request every 40 ms.
const PACE: u64 = 40 * MS;

/// Spends for half a minute while a coordinator grants what is wanted and says that so
/// much is free; then nobody answers any more. How long requests are admitted.
fn lasts(free: u64, until: u64) -> u64 {
    let mut client = Client::open();
    let mut granted = 0;
    let answer = |client: &mut Client, granted: &mut u64| {
        for sync in client.syncs() {
            let want: u64 = sync.reports.iter().map(|report| report.want).sum();
            *granted += want;
            let told = KeyGrant {
                free: Some(free),
                policy: Some(policy(LIMIT)),
                ..grant(5, *granted)
            };
            client.synced(sync.seq, vec![told]);
        }
    };
    while client.now < until {
        let _ = client.spend(1);
        answer(&mut client, &mut granted);
        client.after(PACE);
    }
    let since = client.now;
    while client.spend(1) == Verdict::Admitted {
        client.after(PACE);
        assert!(client.now < since + 60 * SECOND, "it lasts for ever");
    }
    client.now - since
}

#[test]
fn a_busy_key_outlasts_an_election_whenever_the_leader_dies_while_plenty_is_free() {
    for moment in 0..250 {
        let lasted = lasts(LIMIT / 2, 30 * SECOND + moment * PACE);
        assert!(lasted >= 2 * SECOND, "{lasted} ns, {moment} requests later");
    }
}

#[test]
fn nothing_is_asked_for_early_when_others_may_need_it() {
    let shortest = (0..250).map(|moment| lasts(LIMIT / 8, 30 * SECOND + moment * PACE));
    assert!(shortest.min().unwrap() < SECOND);
}
