#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fmt::Write, time::Instant};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn cost(query: &str) -> Result<u64, Refused> {
    Costs::default().of(query, None, &Value::Null)
}

fn with(query: &str, variables: Value) -> Result<u64, Refused> {
    Costs::default().of(query, None, &variables)
}

#[test]
fn each_object_costs_one_times_how_many_there_are_and_leaves_nothing() {
    let query = "query { user { repos(first: 100) { issues(first: 50) { title } } } }";
    assert_eq!(cost(query), Ok(5_101));
    assert_eq!(cost("{ name }"), Ok(0));
    assert_eq!(cost("{ user { name } }"), Ok(1));
    assert_eq!(cost("{ a: user { name } b: user { name } }"), Ok(2));
    assert_eq!(cost("mutation { add(input: {n: [1, 2]}) { id } }"), Ok(1));
    assert_eq!(cost("subscription { news(last: 3) { id } }"), Ok(3));
}

#[test]
fn weights_lists_and_other_arguments_are_as_said() {
    let costs = Costs::default()
        .weight("edges", 0)
        .weight("node", 0)
        .weight("search", 20)
        .weight("score", 3)
        .list("tags", 10)
        .multiplier("limit");
    let of = |query: &str| costs.of(query, None, &Value::Null);
    assert_eq!(of("{ repos(first: 5) { edges { node { id } } } }"), Ok(5));
    assert_eq!(of("{ search(limit: 2) { score } }"), Ok(46));
    assert_eq!(of("{ tags { id } }"), Ok(10));
    assert_eq!(of("{ tags(first: 3) { id } }"), Ok(3));
    assert_eq!(of("{ tags(first: null) { id } }"), Ok(10));
}

#[test]
fn fragments_count_wherever_they_are_used() {
    let query = "
        query { viewer { ...Repos } organization { ...Repos ... on Team { members { id } } } }
        fragment Repos on Owner { repos(first: 10) { ...Issue } }
        fragment Issue on Repo { issues(last: 2) { title } }";
    assert_eq!(cost(query), Ok(2 * (1 + 10 + 20) + 1));
}

#[test]
fn variables_say_how_many_and_so_do_their_defaults() {
    let query = "query($n: Int = 5) { repos(first: $n) { id } }";
    assert_eq!(with(query, Value::Null), Ok(5));
    assert_eq!(with(query, json!({})), Ok(5));
    assert_eq!(with(query, json!({"n": 7})), Ok(7));
    assert_eq!(with(query, json!({"n": 7.0})), Ok(7));
    assert_eq!(with(query, json!({"n": null})), Ok(1));
    assert_eq!(
        with("query($n: Int) { repos(first: $n) { id } }", json!({})),
        Ok(1)
    );
    let bad = Refused::BadCount {
        field: "repos".to_owned(),
        argument: "first".to_owned(),
    };
    for n in [json!(-1), json!(1.5), json!("7"), json!([7]), json!(true)] {
        assert_eq!(with(query, json!({ "n": n })), Err(bad.clone()));
    }
    let unknown = with("{ repos(first: $n) { id } }", json!({"n": 7}));
    assert_eq!(unknown, Err(Refused::NoVariable("n".to_owned())));
    assert_eq!(with(query, json!([1])), Err(Refused::NotARequest));
    // A fragment sees the variables of the operation that uses it.
    let query = "query($n: Int!) { ...F } fragment F on Query { repos(first: $n) { id } }";
    assert_eq!(with(query, json!({"n": 9})), Ok(9));
}

#[test]
fn counts_that_are_none_are_refused_and_zero_is_one() {
    let bad = Refused::BadCount {
        field: "repos".to_owned(),
        argument: "first".to_owned(),
    };
    for count in ["-1", "1.5", "\"7\"", "SEVEN", "[7]", "{n: 7}", "true"] {
        let query = format!("{{ repos(first: {count}) {{ id }} }}");
        assert_eq!(cost(&query), Err(bad.clone()), "{count}");
    }
    assert_eq!(cost("{ repos(first: 0) { id } }"), Ok(1));
    assert_eq!(cost("{ repos(first: -0) { id } }"), Ok(1));
    assert_eq!(cost("{ repos { issues(first: 0) { id } } }"), Ok(2));
    // The greatest counts, whichever a server takes.
    assert_eq!(cost("{ repos(first: 2, last: 9, first: 3) { id } }"), Ok(9));
    // An argument of another name is none of ours.
    assert_eq!(cost("{ repos(after: \"x\", size: -1) { id } }"), Ok(1));
}

#[test]
fn a_cost_that_no_number_holds_is_refused() {
    let max = u64::MAX;
    let too_expensive = Err(Refused::TooExpensive { max });
    let huge = "99999999999999999999999999";
    assert_eq!(
        cost(&format!("{{ a(first: {huge}) {{ id }} }}")),
        too_expensive
    );
    let query = "{ a(first: 4294967296) { b(first: 4294967296) { id } } }";
    assert_eq!(cost(query), too_expensive);
    let query = "query($n: Int) { a(first: $n) { id } }";
    assert_eq!(with(query, json!({"n": 1e300})), too_expensive);
    assert_eq!(with(query, json!({"n": u64::MAX})), too_expensive);
    let costs = Costs::default().points_max(10);
    let of = |query: &str| costs.of(query, None, &Value::Null);
    assert_eq!(of("{ a(first: 10) { id } }"), Ok(10));
    assert_eq!(
        of("{ a(first: 11) { id } }"),
        Err(Refused::TooExpensive { max: 10 })
    );
}

#[test]
fn the_operation_is_the_one_that_is_named() {
    let query = "query A { a { id } } query B { b(first: 7) { id } }";
    let of = |name| Costs::default().of(query, name, &Value::Null);
    assert_eq!(of(Some("A")), Ok(1));
    assert_eq!(of(Some("B")), Ok(7));
    assert_eq!(of(Some("C")), Err(Refused::NoOperation));
    assert_eq!(of(None), Err(Refused::SeveralOperations));
    assert_eq!(cost("fragment F on Q { id }"), Err(Refused::NoOperation));
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    let twice = |query: &str| assert!(matches!(cost(query), Err(Refused::Twice(_))), "{query}");
    twice("{ ...F } fragment F on Q { id } fragment F on Q { a { id } }");
    twice("{ a } { b }");
    twice("query A { a } query A { b }");
    twice("query($n: Int = 1, $n: Int = 9) { a(first: $n) { id } }");
    assert_eq!(cost("{ a } type A { b: Int }"), Err(Refused::NotExecutable));
    assert_eq!(cost("{ ...F }"), Err(Refused::NoFragment("F".to_owned())));
    for broken in [
        "",
        "{",
        "{ a(first: ) { id } }",
        "query($) { a }",
        "{ a(first: $) { id } }",
    ] {
        assert!(
            matches!(cost(broken), Err(Refused::Syntax(_) | Refused::NoOperation)),
            "{broken}: {:?}",
            cost(broken)
        );
    }
}

#[test]
fn a_fragment_that_contains_itself_is_refused() {
    let own = "{ ...F } fragment F on Q { a { ...F } }";
    assert_eq!(cost(own), Err(Refused::Cycle("F".to_owned())));
    let round = "{ ...F } fragment F on Q { ...G } fragment G on Q { x { ...F } }";
    assert_eq!(cost(round), Err(Refused::Cycle("F".to_owned())));
}

fn nested(levels: usize) -> String {
    format!("{}id{}", "{ a ".repeat(levels), " }".repeat(levels))
}

#[test]
fn depth_and_breadth_are_capped_however_they_come_about() {
    let too_deep = Err(Refused::TooDeep { max: 15 });
    assert_eq!(cost(&format!("{{ a {} }}", nested(13))), Ok(13));
    assert_eq!(cost(&format!("{{ a {} }}", nested(14))).map(|_| ()), Ok(()));
    assert_eq!(cost(&format!("{{ a {} }}", nested(15))), too_deep);
    for levels in [200, 1_000, 100_000] {
        let costs = Costs::default().tokens_max(usize::MAX);
        let query = format!("{{ a {} }}", nested(levels));
        assert_eq!(costs.of(&query, None, &Value::Null), too_deep, "{levels}");
    }
    let through = "{ a { ...F } } fragment F on Q ";
    assert_eq!(cost(&format!("{through} {}", nested(15))), too_deep);

    let too_broad = Err(Refused::TooBroad { max: 200 });
    let leaves = |count: usize| {
        (0..count).fold(String::new(), |mut leaves, n| {
            write!(leaves, "a{n}: id ").unwrap();
            leaves
        })
    };
    assert_eq!(cost(&format!("{{ {} }}", leaves(200))), Ok(0));
    assert_eq!(cost(&format!("{{ {} }}", leaves(201))), too_broad);
    let spread = format!("{{ ...F ...F }} fragment F on Q {{ {} }}", leaves(101));
    assert_eq!(cost(&spread), too_broad);

    let query = format!("{{ {} }}", leaves(199));
    let costs = Costs::default().tokens_max(100);
    assert_eq!(
        costs.of(&query, None, &Value::Null),
        Err(Refused::TooLong { max: 100 })
    );
}

/// Each fragment uses the next one twice, so all expanded it has 2^n fields.
fn doubling(fragments: usize, body: &str, last: &str) -> String {
    let mut query = "{ ...F0 }".to_owned();
    for n in 0..fragments {
        let body = body.replace("NEXT", &format!("...F{}", n + 1));
        write!(query, " fragment F{n} on Q {{ {body} }}").unwrap();
    }
    write!(query, " fragment F{fragments} on Q {{ {last} }}").unwrap();
    query
}

#[test]
fn fragments_that_grow_exponentially_take_no_longer_than_they_are_written() {
    let begun = Instant::now();
    let flat = cost(&doubling(150, "NEXT NEXT", "id"));
    assert_eq!(flat, Err(Refused::TooBroad { max: 200 }));
    let objects = doubling(13, "a { NEXT } b { NEXT }", "id");
    assert_eq!(cost(&objects), Ok(2 * ((1 << 13) - 1)));
    let deep = Costs::default().depth_max(100);
    let objects = doubling(90, "a { NEXT } b { NEXT }", "id");
    let max = u64::MAX;
    let told = deep.of(&objects, None, &Value::Null);
    assert_eq!(told, Err(Refused::TooExpensive { max }));
    // A long chain without a field is nested, though not deep.
    let chain = cost(&doubling(500, "NEXT", "id"));
    assert_eq!(chain, Err(Refused::TooDeep { max: 15 }));
    // Without memory this would take longer than the universe has been there.
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}

#[test]
fn a_body_is_one_request_or_a_batch_that_pays_for_all() {
    let costs = Costs::default().batch_max(2);
    let of = |body: Value| costs.of_body(body.to_string().as_bytes());
    let one = json!({"query": "query A { a { id } }", "operationName": "A", "variables": null});
    assert_eq!(of(one.clone()), Ok(1));
    assert_eq!(of(json!([one, one])), Ok(2));
    assert_eq!(
        of(json!([one, one, one])),
        Err(Refused::BatchTooLong { max: 2 })
    );
    assert_eq!(of(json!({"query": "{ a }", "extensions": {}})), Ok(0));
    assert_eq!(
        of(json!({"extensions": {"hash": "x"}})),
        Err(Refused::NoQuery)
    );
    assert_eq!(of(json!("{ a }")), Err(Refused::NotARequest));
    // Which of the two a server takes is not known.
    let twice = br#"{"query": "{ a }", "query": "{ a(first: 9) { id } }"}"#;
    assert_eq!(costs.of_body(twice), Err(Refused::NotARequest));
    assert_eq!(costs.of_body(b"\xff"), Err(Refused::NotARequest));
}

#[test]
fn a_body_that_two_servers_could_read_differently_is_no_request() {
    let of = |body: &str| Costs::default().of_body(body.as_bytes());
    let variables = r#"{"query": "query($n: Int) { a(first: $n) { id } }", "variables": {"n": 1"#;
    assert_eq!(of(&format!("{variables}}}}}")), Ok(1));
    for body in [
        format!(r#"{variables}, "n": 1000}}}}"#),
        r#"{"query": "{ a }", "Query": "{ a(first: 1000) { id } }"}"#.to_owned(),
        format!(r#"{variables}}}, "VARIABLES": {{"n": 1000}}}}"#),
        format!(r#"{variables}}}, "variable\u017f": {{"n": 1000}}}}"#),
        r#"[{"query": "{ a }"}, {"query": "{ a }", "operationname": "B"}]"#.to_owned(),
        r#"{"query": ["{ a }"]}"#.to_owned(),
    ] {
        assert_eq!(of(&body), Err(Refused::NotARequest), "{body}");
    }
}

/// A selection without fragments, and what it costs, counted one by one.
#[derive(Clone, Debug)]
struct Node {
    items: Option<u8>,
    within: Vec<Node>,
}

impl Node {
    fn write(&self, query: &mut String) {
        query.push('f');
        if let Some(items) = self.items {
            write!(query, "(first: {items})").unwrap();
        }
        if !self.within.is_empty() {
            query.push_str(" { ");
            self.within.iter().for_each(|node| node.write(query));
            query.push('}');
        }
        query.push(' ');
    }

    /// Visits every object that there would be.
    fn objects(&self) -> u64 {
        let mut objects = 0;
        for _ in 0..self.items.unwrap_or(1).max(1) {
            objects += u64::from(!self.within.is_empty());
            objects += self.within.iter().map(Self::objects).sum::<u64>();
        }
        objects
    }
}

fn nodes() -> impl Strategy<Value = Node> {
    let items = || proptest::option::of(0_u8..5);
    let leaf = items().prop_map(|items| Node {
        items,
        within: vec![],
    });
    leaf.prop_recursive(5, 40, 4, move |within| {
        (items(), proptest::collection::vec(within, 0..4))
            .prop_map(|(items, within)| Node { items, within })
    })
}

const TOKENS: [&str; 26] = [
    "{", "}", "(", ")", "...", "on", "$", "fragment", "query", "A", "first", ":", "[", "]", "1",
    "-9", "=", "@", "!", "\"", "\"\"\"", "#", "\n", "null", "|", "&",
];

proptest! {
    #[test]
    fn a_query_costs_the_objects_that_it_asks_for(node in nodes()) {
        let mut query = "{ ".to_owned();
        node.write(&mut query);
        query.push('}');
        prop_assert_eq!(cost(&query), Ok(node.objects()));
        // The same through a fragment, twice.
        let query = format!("{{ ...F x {{ ...F }} }} fragment F on Q {query}");
        prop_assert_eq!(cost(&query), Ok(2 * node.objects() + 1));
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,200}", name in proptest::option::of("[A-Z]{1}")) {
        let _ = Costs::default().of(&text, name.as_deref(), &Value::Null);
        let _ = Costs::default().of_body(text.as_bytes());
    }

    #[test]
    fn no_sequence_of_tokens_panics_or_takes_long(
        tokens in proptest::collection::vec(proptest::sample::select(&TOKENS), 0..300),
    ) {
        let text = tokens.join(" ");
        let begun = Instant::now();
        let _ = cost(&text);
        let _ = cost(&format!("{{ ...A }} fragment A on Q {{ {text} }}"));
        prop_assert!(begun.elapsed().as_secs() < 10);
    }

    #[test]
    fn a_query_with_something_cut_out_does_not_panic(from in 0_usize..300, length in 0_usize..40) {
        let query = "query Q($n: Int = 5) @live { viewer { ...R repos(first: $n, last: -0) \
            @include(if: true) { edges { node { id: name } } } } } \
            fragment R on User { ... on Bot { tags(first: 3) { x } } ...S } \
            fragment S on User { s(list: [1, {a: \"b\"}]) { t } }";
        let text: String = query
            .chars()
            .enumerate()
            .filter(|(at, _)| !(from..from + length).contains(at))
            .map(|(_, character)| character)
            .collect();
        let _ = Costs::default().of(&text, Some("Q"), &json!({"n": 3}));
    }
}
