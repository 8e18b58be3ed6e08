#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::Code;

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

/// 100 a minute, of which 40 are left.
fn part(name: &str) -> Part {
    Part {
        index: 0,
        units: 1,
        shown: Shown {
            public_name: name.to_owned(),
            limit: 100,
            remaining: 40,
            window: seconds(60),
            reset: None,
        },
        refuses: false,
    }
}

fn placed(parts: impl IntoIterator<Item = Part>) -> Vec<Part> {
    let placed = parts
        .into_iter()
        .enumerate()
        .map(|(index, part)| Part { index, ..part });
    placed.collect()
}

fn denied(code: Code, retry_after: Option<Duration>) -> Verdict {
    Verdict::Denied { code, retry_after }
}

fn refused(verdict: Verdict, index: usize) -> Told {
    Told {
        verdict,
        refused_by: Some(index),
    }
}

/// Status, header fields and body, as a caller sees them.
fn text(answer: &Answer) -> String {
    let mut text = format!("{}\n", answer.status);
    for (name, value) in &answer.headers {
        writeln!(text, "{name}: {}", value.to_str().unwrap()).unwrap();
    }
    if let Some(body) = &answer.body {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        writeln!(text, "{}", serde_json::to_string_pretty(&body).unwrap()).unwrap();
    }
    text
}

fn told(told: impl Into<Told>, parts: impl IntoIterator<Item = Part>) -> String {
    let answers = Answers::default();
    text(&answers.render(told.into(), placed(parts), Duration::ZERO))
}

#[test]
fn an_admitted_request_is_told_the_figures() {
    insta::assert_snapshot!(told(Verdict::Admitted, [part("default")]));
}

#[test]
fn a_quota_that_is_used_up_is_429() {
    let verdict = denied(Code::Limit, Some(Duration::from_millis(6_001)));
    insta::assert_snapshot!(told(refused(verdict, 0), [part("default")]));
}

#[test]
fn of_several_budgets_the_one_that_refused_is_named() {
    let verdict = denied(Code::Limit, seconds(30));
    let parts = [part("tenant"), part("user"), part("global")];
    insta::assert_snapshot!(told(refused(verdict, 1), parts));
}

#[test]
fn a_quota_that_time_does_not_free_has_no_window_and_no_retry_after() {
    let mut prepaid = part("prepaid");
    prepaid.shown.window = None;
    insta::assert_snapshot!(told(refused(denied(Code::Limit, None), 0), [prepaid]));
}

#[test]
fn a_cost_above_the_limit_is_403_for_good() {
    let mut dear = part("default");
    dear.units = 5_101;
    let verdict = denied(Code::CostAboveLimit, None);
    insta::assert_snapshot!(told(refused(verdict, 0), [dear]));
}

#[test]
fn a_policy_that_fails_closed_is_503() {
    let verdict = Verdict::Unavailable {
        code: Code::Disconnected,
    };
    insta::assert_snapshot!(told(refused(verdict, 0), [part("default")]));
}

#[test]
fn a_gateway_that_has_heard_nothing_yet_shows_no_figures() {
    let verdict = Verdict::Unavailable {
        code: Code::NoAnswer,
    };
    insta::assert_snapshot!(told(refused(verdict, 0), []));
    insta::assert_snapshot!(told(Verdict::Admitted, []));
}

#[test]
fn a_caller_without_a_quota_is_403() {
    insta::assert_snapshot!(told(refused(denied(Code::NoBudget, None), 0), []));
}

#[test]
fn refusals_that_no_budget_was_asked_for() {
    let answers = Answers::default();
    let all = [
        Reason::NoIdentity,
        Reason::BadIdentity,
        Reason::Misconfigured,
    ];
    let all = all.map(|reason| text(&answers.refusal(reason, None)));
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn what_the_failure_mode_lets_through_is_marked() {
    insta::assert_snapshot!(told(Verdict::Degraded, [part("default")]));
    let unmarked = Answers::default().degraded_header(None);
    let answer = unmarked.render(Verdict::Degraded.into(), vec![], Duration::ZERO);
    assert!(answer.is_allowed && answer.headers.is_empty());
}

#[test]
fn shadow_mode_is_seen_only_where_it_is_to_be() {
    let verdict = Verdict::Shadowed { code: Code::Limit };
    let admitted = told(Verdict::Admitted, [part("default")]);
    assert_eq!(told(verdict, [part("default")]), admitted);
    assert_eq!(told(Verdict::Estimated, [part("default")]), admitted);
    let name = HeaderName::from_static("quota-shadow");
    let answers = Answers::default().shadowed_header(Some(name));
    let answer = answers.render(verdict.into(), vec![part("default")], Duration::ZERO);
    insta::assert_snapshot!(text(&answer));
}

#[test]
fn the_older_headers_are_sent_where_they_are_wanted() {
    let answers = Answers::default().legacy(true);
    let mut scarce = part("global");
    scarce.shown.remaining = 3;
    let parts = placed([part("tenant"), scarce]);
    let admitted = answers.render(Verdict::Admitted.into(), parts.clone(), Duration::ZERO);
    let verdict = denied(Code::Limit, seconds(7));
    let denied = answers.render(refused(verdict, 0), parts, Duration::ZERO);
    insta::assert_snapshot!(format!("{}\n{}", text(&admitted), text(&denied)));
    let none = answers.rate_limit(false);
    let answer = none.render(Verdict::Admitted.into(), vec![], Duration::ZERO);
    assert!(answer.headers.is_empty());
}

#[test]
fn budgets_of_one_public_name_are_one_item_the_strictest() {
    let (mut wide, mut narrow) = (part("default"), part("default"));
    wide.shown.limit = 1_000;
    wide.shown.reset = seconds(20);
    narrow.shown.remaining = 2;
    let verdict = denied(Code::Limit, seconds(7));
    let told = [
        told(Verdict::Admitted, [wide.clone(), narrow.clone()]),
        told(Verdict::Admitted, [narrow.clone(), wide.clone()]),
        told(refused(verdict, 0), [wide, narrow]),
    ];
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn names_are_strings_of_structured_fields_and_numbers_their_integers() {
    let mut odd = part(r#"say "hi\ho""#);
    odd.shown.limit = u64::MAX;
    let answer = told(Verdict::Admitted, [odd, part("na\u{ef}ve\n")]);
    insta::assert_snapshot!(answer);
}

#[test]
fn nothing_internal_is_told_for_any_code() {
    let codes = [
        Code::Limit,
        Code::NoBudget,
        Code::CostAboveLimit,
        Code::TooManyAccounts,
        Code::TooManyKeys,
        Code::SessionEnded,
        Code::Misbehaved,
        Code::TooManyWaiters,
        Code::BadKey,
        Code::Closed,
        Code::Disconnected,
        Code::NoAnswer,
        Code::Cooldown,
        Code::WrongKind,
        Code::OtherClient,
        Code::Empty,
        Code::Other,
    ];
    for code in codes {
        for verdict in [denied(code, seconds(1)), Verdict::Unavailable { code }] {
            let answer = told(refused(verdict, 0), [part("default")]);
            // A part of the headers' names, or of other words.
            let is_word = matches!(code, Code::Limit | Code::Empty | Code::Other);
            assert!(is_word || !answer.contains(code.as_str()), "{answer}");
        }
    }
}

#[test]
fn an_answer_is_added_to_another_ones_headers() {
    let answers = Answers::default().legacy(true);
    let answer = answers.render(
        Verdict::Admitted.into(),
        vec![part("default")],
        Duration::ZERO,
    );
    let mut headers = HeaderMap::new();
    headers.insert("ratelimit", HeaderValue::from_static("\"app\";r=1"));
    headers.insert("x-ratelimit-limit", HeaderValue::from_static("7"));
    answer.add_to(&mut headers);
    let all = |name: &str| -> Vec<_> { headers.get_all(name).iter().cloned().collect() };
    assert_eq!(all("ratelimit"), ["\"app\";r=1", "\"default\";r=40"]);
    assert_eq!(all("x-ratelimit-limit"), ["100"]);
}

#[cfg(feature = "grpc")]
#[test]
fn over_grpc_a_refusal_is_a_status_with_retry_info() {
    use tonic_types::StatusExt;

    let answers = Answers::default();
    let status_of = |verdict, jitter| {
        let answer = answers.render(refused(verdict, 0), vec![part("default")], jitter);
        let status = answer.grpc_status().unwrap();
        let retry = status.get_details_retry_info();
        let retry = retry.and_then(|info| info.retry_delay);
        (status.code(), status.message().to_owned(), retry)
    };
    let told = [
        denied(Code::Limit, seconds(7)),
        denied(Code::CostAboveLimit, None),
        denied(Code::NoBudget, None),
        denied(Code::BadKey, None),
        Verdict::Unavailable {
            code: Code::NoAnswer,
        },
        Verdict::Empty,
    ];
    let told = told.map(|verdict| format!("{:?}", status_of(verdict, Duration::from_millis(5))));
    insta::assert_snapshot!(told.join("\n"));
    for reason in [Reason::NoIdentity, Reason::BadIdentity] {
        assert!(
            answers
                .refusal(reason, None)
                .grpc_status()
                .unwrap()
                .details()
                .is_empty()
        );
    }
    let admitted = answers.render(Verdict::Admitted.into(), vec![], Duration::ZERO);
    assert!(admitted.grpc_status().is_none());
}

fn number_of(answer: &Answer, name: &str) -> Option<u64> {
    answer.headers.get(name)?.to_str().ok()?.parse().ok()
}

proptest! {
    #[test]
    fn nobody_is_told_to_come_earlier_than_was_promised(
        promised_ms in 0_u64..100_000_000,
        other_ms in proptest::option::of(0_u64..100_000_000),
        jitter_ms in 0_u64..10_000,
    ) {
        let verdict = denied(Code::Limit, Some(Duration::from_millis(promised_ms)));
        let mut other = part("other");
        other.shown.reset = other_ms.map(Duration::from_millis);
        let jitter = Duration::from_millis(jitter_ms);
        let answer = Answers::default().render(
            refused(verdict, 0),
            placed([part("default"), other]),
            jitter,
        );
        let latest_ms = promised_ms.max(other_ms.unwrap_or(0));
        let seconds = number_of(&answer, "retry-after").unwrap();
        prop_assert!(seconds * 1_000 >= latest_ms + jitter_ms);
        prop_assert!(seconds * 1_000 < latest_ms + jitter_ms + 1_000);
        prop_assert_eq!(answer.retry_after, Some(Duration::from_millis(latest_ms + jitter_ms)));
        for shown in &answer.shown {
            prop_assert!(answer.retry_after >= shown.reset);
        }
    }
}

#[test]
fn the_jitter_is_drawn_from_its_range() {
    let range = Duration::from_millis(100)..=Duration::from_millis(3_000);
    let answers = Answers::default().jitter(range.clone());
    let drawn: Vec<_> = (0..200).map(|_| answers.draw()).collect();
    assert!(drawn.iter().all(|drawn| range.contains(drawn)));
    let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
    assert!(
        *most - *least > Duration::from_secs(1),
        "{least:?} {most:?}"
    );
    let backwards = Duration::from_secs(3)..=Duration::from_secs(1);
    assert_eq!(
        Answers::default().jitter(backwards).draw(),
        Duration::from_secs(3)
    );
}
