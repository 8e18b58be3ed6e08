#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    SECOND,
    system::{Fault, FaultKind, RequestPatience},
    traffic::{Arrivals, Cost, Routing},
};

const ORDERS: &str =
    "[budgets.orders]\nkind = \"sliding_window\"\nlimit = 100\nwindow_ms = 60000\n";

fn refusal(text: &str) -> String {
    Scenario::parse(text).unwrap_err().to_string()
}

#[test]
fn a_budget_alone_is_a_scenario_at_80_percent_of_its_limit() {
    let scenario = Scenario::parse(ORDERS).unwrap();
    assert_eq!(scenario.setup.gateways, 8);
    assert_eq!(scenario.designs, Design::ALL);
    assert_eq!(
        (scenario.from_us, scenario.until_us),
        (300 * SECOND, 3_600 * SECOND)
    );
    let [flow] = scenario.flows.as_slice() else {
        unreachable!("{:?}", scenario.flows)
    };
    let Arrivals::Poisson { per_second } = flow.arrivals else {
        unreachable!("{flow:?}")
    };
    assert!((per_second - 80.0 / 60.0).abs() < 1e-9);
    assert_eq!((flow.routing, flow.cost), (Routing::Even, Cost::Fixed(1)));
}

#[test]
fn everything_that_is_said_is_meant() {
    let scenario = Scenario::parse(
        r#"
        seed = 7
        minutes = 10
        warm_up_minutes = 2
        gateways = 4
        routing = "skewed"
        commit_ms = 1.5
        drift_ppm = 500
        patience_ms = 200
        designs = ["leasehold", "central_log"]

        [budgets.search]
        kind = "token_bucket"
        capacity = 20
        refill = 100
        refill_period_ms = 60000
        slice_factor = 2
        reserve = 1
        demand_horizon_ms = 500
        keys = 3

        [budgets.orders]
        kind = "sliding_window"
        limit = 60
        window_ms = 60000

        [[traffic]]
        budget = "search"
        arrivals = "page_loads"
        per_second = 2
        cost = { least = 1, most = 5 }
        routing = { one = 4 }
        from_s = 10
        until_s = 20

        [[flood]]
        budget = "orders"
        times = 100
        gateway = 2
        from_s = 60

        [network]
        delay_ms = 0.5
        jitter_ms = 2
        loss = 0.01
        duplication = 0.02

        [cluster]
        sync_interval_ms = 500

        [[fault]]
        kind = "freeze"
        gateway = 1
        at_s = 100
        for_s = 30

        [[fault]]
        kind = "leader_loss"
        at_s = 200
        for_s = 2
        "#,
    )
    .unwrap();
    let setup = &scenario.setup;
    assert_eq!((setup.seed, setup.gateways, setup.commit_us), (7, 4, 1_500));
    assert_eq!(setup.patience, RequestPatience::Within(200_000));
    assert_eq!(setup.settings.sync_interval_us, 500_000);
    assert_eq!(
        (setup.network.delay_us, setup.network.jitter_us),
        (500, 2_000)
    );
    assert_eq!(setup.policies.len(), 4);
    let search = &setup.policies[1];
    assert_eq!(
        (search.slice_factor_milli, search.reserve, search.horizon_us),
        (2_000, 1, Some(500_000))
    );
    assert_eq!(
        setup.faults,
        [
            Fault {
                kind: FaultKind::Freeze { gateway: 0 },
                at_us: 100 * SECOND,
                for_us: 30 * SECOND
            },
            Fault {
                kind: FaultKind::LeaderLoss,
                at_us: 200 * SECOND,
                for_us: 2 * SECOND
            }
        ]
    );
    // Budgets are in the order of their names; what no [[traffic]] is about gets the default.
    assert_eq!(scenario.budgets[1].name, "search");
    assert_eq!(scenario.budgets[1].keys, 1..4);
    let keys: Vec<usize> = scenario.flows.iter().map(|flow| flow.key).collect();
    assert_eq!(keys, [1, 2, 3, 0, 0]);
    assert_eq!(scenario.flows[0].routing, Routing::One(3));
    assert_eq!(scenario.flows[0].cost, Cost::Between(1, 5));
    assert_eq!(scenario.flows[0].until_us, 20 * SECOND);
    assert_eq!(scenario.flows[3].routing, Routing::Skewed);
    assert_eq!(scenario.flows[4].routing, Routing::One(1));
    assert_eq!(
        scenario.flows[4].arrivals,
        Arrivals::Poisson { per_second: 100.0 }
    );
}

#[test]
fn what_cannot_be_is_named_with_its_value_and_its_range() {
    for (text, message) in [
        ("gateways = 0", "gateways (0) must be 1 to 1000"),
        ("gateways = -3", "gateways (-3) must be 1 to 1000"),
        ("minutes = 0.5", "minutes (0.5) must be 1 to 10080"),
        ("minutes = nan", "minutes (NaN) must be 1 to 10080"),
        (
            "minutes = 10\nwarm_up_minutes = 10",
            "warm_up_minutes (10) must be 0 to 9.5",
        ),
        ("seed = -1", "seed (-1) must be 0 to 9223372036854775807"),
        ("commit_ms = -1", "commit_ms (-1) must be 0 to 10000"),
        (
            "patience_ms = 1e9",
            "patience_ms (1000000000) must be 0 to 60000",
        ),
        ("drift_ppm = 1001", "drift_ppm (1001) must be 0 to 1000"),
        ("routing = { one = 9 }", "routing.one (9) must be 1 to 8"),
        (
            "routing = { moving_every_s = 0 }",
            "routing.moving_every_s (0) must be 0.001 to 3600",
        ),
        (
            "designs = []",
            "designs ([]) must name at least one, such as \"leasehold\"",
        ),
        (
            "designs = [\"split\", \"split\"]",
            "designs (split) is named twice",
        ),
    ] {
        assert_eq!(refusal(&format!("{text}\n{ORDERS}")), message);
    }
    for (text, message) in [
        ("keys = 0", "budgets.orders.keys (0) must be 1 to 10000"),
        (
            "slice_factor = 0.5",
            "budgets.orders.slice_factor (0.5) must be 1 to 10",
        ),
        (
            "max_wait_ms = 0",
            "budgets.orders.max_wait_ms (0) must be 1 to 60000",
        ),
        (
            "reserve = 100",
            "budgets.orders.reserve (100) must be 0 or less than limit (100)",
        ),
        (
            "demand_horizon_ms = 5",
            "budgets.orders.demand_horizon_ms (5) must be 10 to 10000",
        ),
        (
            "capacity = 3",
            "budgets.orders.capacity does not belong to a sliding_window, which has limit, window_ms",
        ),
        (
            "failure_mode = \"open\"",
            "budgets.orders.failure_mode (open) must be closed here: what is admitted without a \
             coordinator is outside the promise that is judged",
        ),
        ("[network]\nloss = 1", "network.loss (1) must be 0 to 0.9"),
        (
            "[cluster]\nsession_ttl_ms = 2000",
            "cluster.session_ttl_ms (2000) must be at least 3 × sync_interval_ms (1000)",
        ),
        (
            "[[traffic]]\nload = 0",
            "traffic[1].load (0) must be 0.000001 to 10000",
        ),
        (
            "[[traffic]]\nload = 1\n[[traffic]]\nload = 1\nper_second = 2",
            "traffic[2] has load and per_second: say one of them",
        ),
        (
            "[[traffic]]\nbudget = \"order\"",
            "traffic[1].budget (order) must be one of orders",
        ),
        (
            "[[traffic]]\ncost = { least = 3, most = 2 }",
            "traffic[1].cost.least (3) must not be above its most (2)",
        ),
        (
            "[[traffic]]\ncost = { least = 1, most = 101 }",
            "traffic[1].cost.most (101) must be 1 to 100",
        ),
        (
            "[[traffic]]\nfrom_s = 20\nuntil_s = 10",
            "traffic[1].from_s (20) must not be after its until_s (10)",
        ),
        (
            "[[traffic]]\nper_second = 1e6",
            "minutes (60) × traffic come to 3600000000 requests, must be at most 20000000: say fewer \
             minutes, keys or requests per second",
        ),
        (
            "[[flood]]\ntimes = 1e6",
            "flood[1].times (1000000) must be 0.001 to 100000",
        ),
        (
            "[[flood]]\ntimes = 2\ngateway = 9",
            "flood[1].gateway (9) must be 1 to 8",
        ),
        (
            "[[fault]]\nkind = \"crash\"\nat_s = 1\nfor_s = 1",
            "fault[1].gateway is missing: 1 to 8",
        ),
        (
            "[[fault]]\nkind = \"leader_loss\"\ngateway = 1\nat_s = 1\nfor_s = 1",
            "fault[1].gateway (1) has no meaning: a leader is not a gateway",
        ),
        (
            "[[fault]]\nkind = \"crash\"\ngateway = 1\nat_s = 3601\nfor_s = 1",
            "fault[1].at_s (3601) must be 0 to 3600",
        ),
    ] {
        assert_eq!(refusal(&format!("{ORDERS}{text}")), message);
    }
}

#[test]
fn a_rule_must_be_whole_and_within_the_ledgers_ranges() {
    let rule = |fields: &str| format!("[budgets.a]\nkind = {fields}");
    for (fields, message) in [
        (
            "\"sliding_window\"\nlimit = 5",
            "budgets.a.window_ms is missing: a sliding_window needs it",
        ),
        (
            "\"sliding_window\"\nlimit = 5\nwindow_ms = 1",
            "budgets.a.window_ms (1) must be 100 to 2678400000 (31 days)",
        ),
        (
            "\"sliding_window\"\nlimit = -5\nwindow_ms = 1000",
            "budgets.a.limit (-5) must be 0 to 9007199254740991",
        ),
        (
            "\"sliding_window\"\nlimit = 0\nwindow_ms = 1000",
            "the traffic of budgets.a is a part of budgets.a.limit (0), which is nothing: say per_second",
        ),
        (
            "\"token_bucket\"\ncapacity = 5\nrefill = 0\nrefill_period_ms = 1000",
            "budgets.a.refill (0) must be 1 to 9007199254740991",
        ),
    ] {
        assert_eq!(refusal(&rule(fields)), message);
    }
    assert_eq!(
        refusal("[budgets]"),
        "budgets is empty: say [budgets.NAME] with kind, limit and window_ms"
    );
    let two = format!(
        "{ORDERS}{}[[traffic]]\nload = 1",
        ORDERS.replace("orders", "reads")
    );
    assert_eq!(
        refusal(&two),
        "traffic[1].budget is missing: one of orders, reads"
    );
}

#[test]
fn fields_that_there_are_not_are_refused_where_they_stand() {
    let message = refusal(&format!("gatways = 8\n{ORDERS}"));
    assert!(message.contains("line 1"), "{message}");
    assert!(message.contains("unknown field `gatways`"), "{message}");
    assert!(message.contains("`gateways`"), "{message}");
    let message = refusal(&ORDERS.replace("sliding", "slidng"));
    assert!(
        message.contains("unknown variant `slidng_window`"),
        "{message}"
    );
    let message = refusal(&format!("designs = [\"splt\"]\n{ORDERS}"));
    assert!(message.contains("`split`"), "{message}");
    let message = refusal("gateways = 3");
    assert!(message.contains("missing field `budgets`"), "{message}");
}

#[test]
fn designs_for_windows_are_not_compared_on_buckets() {
    let bucket =
        "[budgets.a]\nkind = \"token_bucket\"\ncapacity = 5\nrefill = 5\nrefill_period_ms = 1000\n";
    let scenario = Scenario::parse(bucket).unwrap();
    assert_eq!(scenario.designs, [Design::Leasehold, Design::CentralLog]);
    assert_eq!(
        refusal(&format!("designs = [\"split\"]\n{bucket}")),
        "designs (split) is defined for sliding windows only, and there is a token_bucket: say \
         leasehold, central_log or both"
    );
}
