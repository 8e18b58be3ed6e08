//! A quota per calendar period.

use std::time::Duration;

use leasehold_client::{Budget, Verdict};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cluster::{Cluster, WAIT};

/// Spends until it is refused; gives how much was admitted, and when to try again.
async fn spend_all(budget: &Budget) -> (u64, Option<Duration>) {
    let mut admitted = 0;
    loop {
        match timeout(WAIT, budget.spend(1)).await.unwrap() {
            Verdict::Admitted => admitted += 1,
            Verdict::Denied { code, retry_after } => {
                assert_eq!(code.as_str(), "limit");
                return (admitted, retry_after);
            }
            // A leader may be on its way.
            Verdict::Unavailable { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Spends until one is admitted.
async fn is_admitted(budget: &Budget) {
    let admitted = async { while budget.spend_within(1, WAIT).await != Verdict::Admitted {} };
    timeout(WAIT, admitted).await.expect("nothing was admitted");
}

fn daily(limit: u64, carry_over: u64) -> Value {
    json!({
        "kind": "period", "limit": limit, "period": "day", "time_zone": "Europe/Berlin",
        "carry_over": carry_over,
    })
}

async fn number_of(cluster: &Cluster, key: &str) -> u64 {
    cluster.account(key).await["period"]["number"]
        .as_u64()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_period_begins_when_a_majority_of_the_clocks_says_so_and_is_charged_its_own_units() {
    let cluster = Cluster::start().await;
    cluster.budget("acme/*", daily(10, 0)).await;
    let gateway = cluster.gateway("gw-1").await;
    let orders = gateway.budget("acme/orders").unwrap();
    let (admitted, retry_after) = spend_all(&orders).await;
    assert_eq!(admitted, 10);
    let hours = retry_after.unwrap().as_secs_f64() / 3_600.0;
    assert!((11.9..=12.0).contains(&hours), "noon to midnight: {hours}");

    // The leader's own clock runs ahead: nothing begins.
    let leader = cluster.leader().await;
    cluster.set_clock_ahead(leader, 13);
    for _ in 0..5 {
        let body = json!({ "key": "acme/orders" });
        let answer = cluster.ask("POST", "/v1/spend", Some(body)).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
    }
    assert_eq!(number_of(&cluster, "acme/orders").await, 1);

    // A second one agrees: the next day begins, and whoever was refused hears of it.
    cluster.set_clock_ahead((leader + 1) % 3, 13);
    is_admitted(&orders).await;
    let (admitted, _) = spend_all(&orders).await;
    assert_eq!(1 + admitted, 10);
    let account = cluster.account("acme/orders").await;
    assert_eq!(account["period"]["number"], 2, "{account}");
    let midnight = account["period"]["start_unix_ms"].as_i64().unwrap();
    let end = account["period"]["end_unix_ms"].as_i64().unwrap();
    assert_eq!(
        end - midnight,
        23 * 3_600_000,
        "the clocks go forward that night"
    );

    // Clocks that go back begin nothing a second time.
    cluster.set_clock_ahead(leader, 0);
    cluster.set_clock_ahead((leader + 1) % 3, 0);
    cluster
        .until("the clocks went back", |cluster| {
            cluster.majority_hours(leader).filter(|hours| *hours == 0)
        })
        .await;
    assert_eq!(spend_all(&orders).await.0, 0);
    assert_eq!(number_of(&cluster, "acme/orders").await, 2);
    timeout(WAIT, gateway.close()).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_out_when_a_period_begins_is_held_against_it_and_what_was_unused_is_carried_over() {
    let cluster = Cluster::start().await;
    cluster.budget("acme/*", daily(10, 4)).await;
    let gateway = cluster.gateway("gw-1").await;
    let orders = gateway.budget("acme/orders").unwrap();
    for _ in 0..3 {
        is_admitted(&orders).await;
    }
    for node in 0..3 {
        cluster.set_clock_ahead(node, 13);
    }
    let leader = cluster.leader().await;
    cluster
        .until("it is the next day", |cluster| {
            cluster.majority_hours(leader).filter(|hours| *hours == 13)
        })
        .await;
    // What the gateway has parked comes back, and the new day has everything.
    let all = async {
        loop {
            let account = cluster.account("acme/orders").await;
            let leases = account["leases"].as_array().unwrap();
            let are_new = leases.iter().all(|lease| lease["current"] == true);
            if account["period"]["number"] == 2 && are_new {
                return account;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let account = timeout(WAIT, all).await.unwrap();
    let limit = account["limit"].as_u64().unwrap();
    assert!((10..=14).contains(&limit), "{account}");
    let (admitted, _) = spend_all(&orders).await;
    assert_eq!(admitted, limit, "{account}");
    timeout(WAIT, gateway.close()).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_period_goes_on_under_the_next_leader() {
    let mut cluster = Cluster::start().await;
    cluster.budget("acme/*", daily(10, 0)).await;
    let gateway = cluster.gateway("gw-1").await;
    let orders = gateway.budget("acme/orders").unwrap();
    assert_eq!(spend_all(&orders).await.0, 10);
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    assert_eq!(number_of(&cluster, "acme/orders").await, 1);
    assert_eq!(spend_all(&orders).await.0, 0);
    // Two of three are a majority, if they agree.
    for node in 0..3 {
        cluster.set_clock_ahead(node, 13);
    }
    is_admitted(&orders).await;
    assert_eq!(number_of(&cluster, "acme/orders").await, 2);
    timeout(WAIT, gateway.close()).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_period_that_wrong_clocks_began_is_corrected_and_what_was_charged_stays() {
    let cluster = Cluster::start().await;
    cluster.budget("acme/*", daily(10, 0)).await;
    cluster
        .done(
            "POST",
            "/v1/spend",
            json!({ "key": "acme/orders", "units": 4 }),
        )
        .await;
    // Two clocks are a month ahead.
    let leader = cluster.leader().await;
    cluster.set_clock_ahead(leader, 30 * 24);
    cluster.set_clock_ahead((leader + 1) % 3, 30 * 24);
    let wrong = async {
        while number_of(&cluster, "acme/orders").await < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(WAIT, wrong).await.unwrap();
    cluster
        .done(
            "POST",
            "/v1/spend",
            json!({ "key": "acme/orders", "units": 3 }),
        )
        .await;
    cluster.set_clock_ahead(leader, 0);
    cluster.set_clock_ahead((leader + 1) % 3, 0);
    cluster
        .until("the clocks are right", |cluster| {
            cluster.majority_hours(leader).filter(|hours| *hours == 0)
        })
        .await;
    let list = cluster.ask("GET", "/v1/periods", None).await.body;
    let end = |calendar: &Value| calendar["end_unix_ms"].as_i64().unwrap();
    let (now, wrong) = (
        list["majority_unix_ms"].as_i64().unwrap(),
        end(&list["calendars"][0]),
    );
    assert!(
        wrong - now > 29 * 86_400_000,
        "it would last for a month: {list}"
    );
    let body = json!({ "period": "day", "time_zone": "Europe/Berlin" });
    let corrected = cluster
        .done("POST", "/v1/periods/correct", body.clone())
        .await;
    assert_eq!(corrected["changed"], true, "{corrected}");
    let again = cluster.done("POST", "/v1/periods/correct", body).await;
    assert_eq!(again["changed"], false, "{again}");
    assert!(
        (1..=12 * 3_600_000).contains(&(end(&corrected) - now)),
        "{corrected}"
    );
    assert_eq!(cluster.account("acme/orders").await["counted"], 3);
    // The next one begins at midnight.
    for node in 0..3 {
        cluster.set_clock_ahead(node, 13);
    }
    let next = async {
        while number_of(&cluster, "acme/orders").await < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(WAIT, next).await.unwrap();
    cluster.end().await;
}
