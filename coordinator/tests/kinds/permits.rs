//! How many may be at work at once.

use serde_json::json;
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_permits_are_valid_than_there_are_and_a_dropped_one_serves_another_gateway() {
    let mut cluster = Cluster::start().await;
    cluster
        .budget("jobs/*", json!({ "kind": "concurrency", "limit": 3 }))
        .await;
    let (one, two) = (cluster.gateway("gw-1").await, cluster.gateway("gw-2").await);
    let (mine, theirs) = (one.budget("jobs/a").unwrap(), two.budget("jobs/a").unwrap());
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(
            timeout(WAIT, mine.acquire_within(1, WAIT))
                .await
                .unwrap()
                .unwrap(),
        );
    }
    let other = timeout(WAIT, theirs.acquire_within(1, WAIT))
        .await
        .unwrap()
        .unwrap();
    for budget in [&mine, &theirs] {
        let no = timeout(WAIT, budget.acquire(1)).await.unwrap().unwrap_err();
        assert_eq!(no.code().unwrap().as_str(), "limit");
    }
    // A leader that goes takes no permit with it, and gives none away.
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    assert!(held.iter().all(leasehold_client::Permit::is_valid));
    let account = cluster.books_say("jobs/a", "outstanding", 3).await;
    assert_eq!(
        (&account["free"], &account["counted"]),
        (&json!(0), &json!(0))
    );

    // One is given back here, and taken there.
    let waits = tokio::spawn(async move { theirs.acquire_within(1, WAIT).await });
    held.pop();
    let again = timeout(WAIT, waits).await.unwrap().unwrap().unwrap();
    assert!(again.is_valid() && other.is_valid());
    let no = timeout(WAIT, mine.acquire(1)).await.unwrap().unwrap_err();
    assert_eq!(no.code().unwrap().as_str(), "limit");

    // Permits are not spent, and other units are not permits.
    let spent = timeout(WAIT, mine.spend(1)).await.unwrap();
    assert!(format!("{spent:?}").contains("WrongKind"), "{spent:?}");
    let body = json!({ "key": "jobs/a" });
    let answer = cluster.ask("POST", "/v1/spend", Some(body)).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["code"]),
        (429, &json!("wrong_kind"))
    );
    drop((held, other, again));
    for gateway in [one, two] {
        timeout(WAIT, gateway.close()).await.unwrap();
    }
    // Nothing is in use any more: there is nothing to remember.
    let answer = cluster.ask("GET", "/v1/accounts/jobs/a", None).await;
    assert_eq!(answer.body["code"], "no_such_account", "{}", answer.body);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_gateways_permits_come_back_when_its_session_has_ended_and_it_was_told_before() {
    let cluster = Cluster::start_brisk().await;
    cluster
        .budget("jobs/*", json!({ "kind": "concurrency", "limit": 2 }))
        .await;
    let (dead, alive) = (
        cluster.gateway("dead").await,
        cluster.gateway("alive").await,
    );
    let theirs = dead.budget("jobs/a").unwrap();
    let permit = timeout(WAIT, theirs.acquire_within(2, WAIT))
        .await
        .unwrap()
        .unwrap();
    let mine = alive.budget("jobs/a").unwrap();
    let no = timeout(WAIT, mine.acquire(1)).await.unwrap().unwrap_err();
    assert_eq!(no.code().unwrap().as_str(), "limit");
    // It says nothing any more: an operator ends its session, so that nothing renews it.
    let list = cluster.ask("GET", "/v1/sessions", None).await.body;
    let sessions = list["sessions"].as_array().unwrap();
    let session = sessions
        .iter()
        .find(|session| session["holder"] == "dead")
        .unwrap();
    let path = format!("/v1/sessions/{}", session["id"].as_str().unwrap());
    assert!(cluster.ask("DELETE", &path, None).await.status.is_success());
    let again = timeout(WAIT, mine.acquire_within(2, WAIT))
        .await
        .unwrap()
        .unwrap();
    // Whoever had it was told before somebody else got it.
    assert!(again.is_valid() && !permit.is_valid());
    timeout(WAIT, permit.ended()).await.unwrap();
    drop((again, permit));
    timeout(WAIT, alive.close()).await.unwrap();
    cluster.end().await;
}
