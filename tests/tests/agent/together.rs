//! Several agents of one coordinator.

use std::thread;

use leasehold_tests::AgentProcess;

use crate::setup::{CHECK, Setup, check, stop};

#[test]
fn agents_that_are_hammered_at_once_admit_no_more_than_the_limit_together() {
    const LIMIT: u64 = 200;
    let setup = Setup::new();
    setup.put_window("edge/*", LIMIT);
    let agents: Vec<AgentProcess> = (0..2).map(|_| setup.agent(CHECK)).collect();
    let admitted: u64 = thread::scope(|scope| {
        let hammers: Vec<_> = (0..8)
            .map(|hammer| {
                let agent = &agents[hammer % agents.len()];
                scope.spawn(move || {
                    let answers = (0..100).map(|_| check(agent, "acme").status);
                    let passed: Vec<u16> = answers.collect();
                    assert!(passed.iter().all(|status| [204, 429].contains(status)));
                    let admitted = passed.iter().filter(|status| **status == 204);
                    u64::try_from(admitted.count()).unwrap()
                })
            })
            .collect();
        hammers.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert!(admitted <= LIMIT, "{admitted} of {LIMIT}");
    assert!(
        admitted > LIMIT / 2,
        "hardly anything was admitted: {admitted}"
    );
    agents.into_iter().for_each(stop);
    assert_eq!(setup.spent("edge/acme"), admitted, "each is charged once");
}
