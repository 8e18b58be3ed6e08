//! What requests that change rules or settings have in common: on which condition, by
//! whom, whether only to foresee, and what is answered. Does not know what is changed.

use axum::{
    Json,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header as names},
    response::{IntoResponse, Response},
};
use leasehold_ledger::{
    Preview,
    edit::{Edit, Expect, Guarded, RuleChange},
    entry::Command,
    outcome::{CommandOutcome, CommandRefusal, Edited},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Admin,
    corrections::BY,
    header,
    problem::{Kind, Problem},
};

/// The query of a request that changes something.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Trial {
    /// `true`: say what the change would do, and change nothing.
    #[serde(default)]
    #[param(value_type = Option<bool>)]
    dry_run: Option<String>,
}

/// The headers of a request that changes something, for its description.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only described")]
pub(super) struct ConditionHeaders {
    /// Change only what still has this `ETag`, or one of several; `*`: only what is there.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// `*`: change only what is not there yet.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
    /// Who makes the change, for the list of versions, up to 128 bytes. Nobody checks it:
    /// there is no authentication yet.
    #[param(rename = "Leasehold-By")]
    leasehold_by: Option<String>,
}

impl Trial {
    pub(super) fn is_dry_run(&self) -> Result<bool, Problem> {
        match self.dry_run.as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Problem::new(
                Kind::InvalidQuery,
                format!("dry_run ({other}) must be true or false"),
            )
            .at("dry_run")),
        }
    }
}

/// What the headers say of a change.
#[derive(Debug)]
pub(super) struct Circumstances {
    pub(super) expect: Expect,
    pub(super) by: String,
}

impl Circumstances {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        Ok(Self {
            expect: expectation(headers)?,
            by: header::text(headers, &BY)?.unwrap_or_default(),
        })
    }

    /// Of a change of many things, whose conditions are stated with each.
    pub(super) fn of_many(headers: &HeaderMap) -> Result<Self, Problem> {
        let stated = Self::of(headers)?;
        if stated.expect == Expect::Anything {
            return Ok(stated);
        }
        Err(Problem::new(
            Kind::InvalidHeader,
            "If-Match and If-None-Match are about one thing: here each one states its own etag",
        ))
    }
}

fn invalid(name: &HeaderName, value: &HeaderValue, what: &str) -> Problem {
    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
    Problem::new(Kind::InvalidHeader, format!("{name} ({value}) {what}"))
}

fn expectation(headers: &HeaderMap) -> Result<Expect, Problem> {
    let none_match = match headers.get(names::IF_NONE_MATCH) {
        None => Expect::Anything,
        Some(value) if value.as_bytes().trim_ascii() == b"*" => Expect::Absent,
        Some(value) => {
            let what = "must be *: change only what is not there yet";
            return Err(invalid(&names::IF_NONE_MATCH, value, what));
        }
    };
    let mut tags = Vec::new();
    let mut values = headers.get_all(names::IF_MATCH).iter().peekable();
    if values.peek().is_none() {
        return Ok(none_match);
    }
    for value in values {
        if none_match != Expect::Anything {
            let what = "goes without If-None-Match";
            return Err(invalid(&names::IF_MATCH, value, what));
        }
        if value.as_bytes().trim_ascii() == b"*" {
            return Ok(Expect::Present);
        }
        let text = value.to_str().unwrap_or_default();
        for tag in text.split(',').map(str::trim) {
            let quoted = |tag: &str| tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"');
            match tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')) {
                // Of another server, or older than this format: matches nothing.
                Some(opaque) => tags.extend(parse_tag(opaque)),
                // A weak one never matches strongly.
                None if tag.strip_prefix("W/").is_some_and(quoted) => {}
                None => {
                    let what = "must be * or what ETag said, with its quotation marks";
                    return Err(invalid(&names::IF_MATCH, value, what));
                }
            }
        }
    }
    Ok(Expect::OneOf(tags))
}

/// A refused change; `is_new`: of something that was not to be there yet.
pub(super) fn refused(refusal: CommandRefusal, is_new: bool) -> Problem {
    match refusal {
        CommandRefusal::PreconditionFailed { present: Some(tag) } if is_new => Problem::new(
            Kind::PreconditionFailed,
            format!(
                "it exists already: its ETag is \"{}\"; nothing was changed",
                shown_tag(tag)
            ),
        ),
        other => other.into(),
    }
}

/// A tag as it is shown.
pub(super) fn shown_tag(tag: u64) -> String {
    format!("{tag:016x}")
}

/// A tag as it was shown.
pub(super) fn parse_tag(text: &str) -> Option<u64> {
    (text.len() == 16)
        .then(|| u64::from_str_radix(text, 16).ok())
        .flatten()
}

/// An answer with its `ETag`.
#[derive(Debug)]
pub(super) struct Tagged<T>(pub(super) u64, pub(super) T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        let Self(tag, body) = self;
        let mut response = Json(body).into_response();
        if let Ok(value) = HeaderValue::try_from(format!("\"{}\"", shown_tag(tag))) {
            response.headers_mut().insert(names::ETAG, value);
        }
        response
    }
}

/// What a change did, or would do.
pub(super) enum Outcome {
    Made(Vec<Edited>),
    Foreseen(Foreseen),
}

/// What became of a change: what is in force now, or what it would do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum PutAnswer<T> {
    /// What is in force now.
    Made(T),
    /// With `dry_run=true`.
    Foreseen(Foreseen),
}

/// What a change would do if it was made now. Nothing was changed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Foreseen {
    /// Always true.
    dry_run: bool,
    /// How many things would be otherwise than they are.
    changes: usize,
    /// Accounts that would follow another or an edited rule.
    accounts: u64,
    /// Those of them whose leases would end, and which would begin anew with what is
    /// counted carried over at its worst: the kind, the window or the calendar changes.
    new_generations: u64,
    /// Those of them that no budget would match any more: they are granted nothing.
    without_budget: u64,
    /// By how much debts would grow, in all.
    debt: u64,
    /// The keys whose debts would grow most, the greatest first, at most 20.
    worst: Vec<ForeseenDebt>,
    /// Units that would be free at once and are not now, in all.
    freed: u64,
}

/// By how much the debt of one account would grow.
#[derive(Debug, Serialize, ToSchema)]
struct ForeseenDebt {
    key: String,
    debt: u64,
}

impl From<Preview> for Foreseen {
    fn from(preview: Preview) -> Self {
        let worst = preview.worst.into_iter().map(|(key, debt)| ForeseenDebt {
            key: key.as_str().to_owned(),
            debt,
        });
        Self {
            dry_run: true,
            changes: preview.changes.iter().filter(|one| one.changed).count(),
            accounts: preview.accounts,
            new_generations: preview.new_generations,
            without_budget: preview.left,
            debt: preview.debt,
            worst: worst.collect(),
            freed: preview.freed,
        }
    }
}

impl Outcome {
    /// The answer to a `PUT`: `body` shows what is in force.
    pub(super) fn of_put<T: Serialize>(self, body: impl FnOnce(u64, u64) -> T) -> Response {
        match self {
            Self::Foreseen(foreseen) => Json(PutAnswer::<T>::Foreseen(foreseen)).into_response(),
            Self::Made(edited) => {
                let (version, tag) = edited
                    .first()
                    .map_or((0, None), |one| (one.version, one.tag));
                let tag = tag.unwrap_or_default();
                Tagged(tag, PutAnswer::Made(body(version, tag))).into_response()
            }
        }
    }

    /// The answer to a `DELETE`.
    pub(super) fn of_delete(self) -> Response {
        match self {
            Self::Foreseen(foreseen) => Json(foreseen).into_response(),
            Self::Made(_) => StatusCode::NO_CONTENT.into_response(),
        }
    }
}

impl Admin {
    /// Makes one change, or says what it would do.
    pub(super) async fn change(
        &self,
        change: RuleChange,
        circumstances: Circumstances,
        dry_run: bool,
    ) -> Result<Outcome, Problem> {
        let Circumstances { expect, by } = circumstances;
        let is_new = expect == Expect::Absent;
        self.edit(vec![Guarded { change, expect }], by, dry_run)
            .await?
            .map_err(|refusal| refused(refusal, is_new))
    }

    /// Makes all changes or none, or says what they would do. The inner error is the
    /// ledger's refusal.
    pub(super) async fn edit(
        &self,
        changes: Vec<Guarded>,
        by: String,
        dry_run: bool,
    ) -> Result<Result<Outcome, CommandRefusal>, Problem> {
        let wall_unix_us = (self.node.config().replica.wall_unix_us)();
        let edit = Edit {
            changes,
            by,
            wall_unix_us: i64::try_from(wall_unix_us).unwrap_or(i64::MAX),
        };
        let about = edit.changes.first().map(|one| one.change.clone());
        if dry_run {
            let (frozen, now_us) = self
                .node
                .read(|ledger, now_us| (ledger.freeze(), now_us))
                .await?;
            // As long as there are many accounts, which nobody is to wait for.
            let foreseen = tokio::task::spawn_blocking(move || frozen.preview(&edit, now_us));
            let foreseen = foreseen.await.map_err(|error| {
                Problem::new(Kind::Internal, format!("the dry run ended: {error}"))
            })?;
            return Ok(foreseen.map(|preview| Outcome::Foreseen(preview.into())));
        }
        Ok(match self.node.submit(Command::Edit(edit)).await? {
            CommandOutcome::Edited(edited) => Ok(Outcome::Made(edited)),
            // Written so that older members read it: the rest is to be read.
            CommandOutcome::Done { changed } => {
                let present = self.node.read(|ledger, _| ledger.present(&about?));
                let present = present.await?;
                Ok(Outcome::Made(vec![Edited {
                    changed,
                    version: present.map_or(0, |(version, _)| version),
                    tag: present.map(|(_, tag)| tag),
                }]))
            }
            CommandOutcome::Refused(refusal) => Err(refusal),
            other => {
                return Err(Problem::new(
                    Kind::Internal,
                    format!("unexpected outcome of an edit: {other:?}"),
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn stated(headers: &[(&'static str, &'static str)]) -> Result<Circumstances, Problem> {
        let headers = headers.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
        });
        Circumstances::of(&headers.collect())
    }

    fn expected(headers: &[(&'static str, &'static str)]) -> Expect {
        stated(headers).unwrap().expect
    }

    #[test]
    fn conditions_read_as_http_means_them() {
        assert_eq!(expected(&[]), Expect::Anything);
        assert_eq!(expected(&[("if-none-match", " * ")]), Expect::Absent);
        assert_eq!(expected(&[("if-match", "*")]), Expect::Present);
        let tag = r#""00000000000000ff""#;
        assert_eq!(expected(&[("if-match", tag)]), Expect::OneOf(vec![255]));
        assert_eq!(
            expected(&[("if-match", r#""00000000000000ff" , "0000000000000001""#)]),
            Expect::OneOf(vec![255, 1])
        );
        // What cannot be ours, or is weak, matches nothing.
        for tag in [
            r#"W/"00000000000000ff""#,
            r#""ff""#,
            r#""""#,
            r#""-0000000000000ff""#,
        ] {
            assert_eq!(
                expected(&[("if-match", tag)]),
                Expect::OneOf(Vec::new()),
                "{tag}"
            );
        }
    }

    #[test]
    fn a_condition_that_is_none_is_refused_by_name() {
        for headers in [
            [("if-match", "00000000000000ff")].as_slice(),
            &[("if-match", "")],
            &[("if-match", "W/ff")],
            &[("if-none-match", r#""00000000000000ff""#)],
            &[("if-match", "*"), ("if-none-match", "*")],
        ] {
            let problem = stated(headers).unwrap_err();
            assert_eq!(problem.code(), "invalid_header", "{headers:?}");
        }
    }
}
