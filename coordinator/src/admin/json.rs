//! Strict JSON in, milliseconds out: bodies whose every error names the field,
//! whole numbers that survive any JSON parser. Knows nothing of what the numbers
//! mean.

use std::fmt;

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
};
use leasehold_ledger::policy::UNITS_MAX;
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

use super::problem::{Kind, Problem};
use crate::plain_words::in_plain_words;

/// A JSON body. Any content type will do: `curl -d` sends a form's.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: de::DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        // The size was bounded before the request came here.
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|error| Problem::new(Kind::InvalidJson, error.body_text()))?;
        parse(&bytes).map(Self)
    }
}

/// Parses a body, or says which field is wrong and why.
pub(crate) fn parse<T: de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Problem::new(
            Kind::InvalidJson,
            "the body is empty: it must be a JSON object",
        ));
    }
    // serde would take an array for a struct, field by field, and name our types
    // to whoever sends anything else.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{')
        && let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes)
    {
        let kind = match value {
            serde_json::Value::Array(_) => "an array",
            serde_json::Value::String(_) => "a string",
            serde_json::Value::Number(_) => "a number",
            serde_json::Value::Bool(_) => "a boolean",
            serde_json::Value::Null | serde_json::Value::Object(_) => "null",
        };
        return Err(Problem::new(
            Kind::InvalidField,
            format!("the body is {kind}: it must be a JSON object"),
        ));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        // The parser calls it a mistake of syntax, too, when a name is expected and
        // something else is there.
        let is_json = || serde_json::from_slice::<de::IgnoredAny>(bytes).is_ok();
        if (inner.is_syntax() || inner.is_eof()) && !is_json() {
            return Problem::new(Kind::InvalidJson, inner.to_string());
        }
        let text = in_plain_words(&without_position(&inner.to_string()));
        match culprit(&path, &text) {
            Some(field) => Problem::field(field, text),
            None => Problem::new(Kind::InvalidField, text),
        }
    })?;
    json.end()
        .map_err(|error| Problem::new(Kind::InvalidJson, error.to_string()))?;
    Ok(value)
}

/// The field that an error is about: serde names unknown and missing fields in
/// its text, all others are where the parser stood.
fn culprit(path: &str, text: &str) -> Option<String> {
    let parent = if path == "." { "" } else { path };
    for start in ["unknown field `", "missing field `", "duplicate field `"] {
        if let Some(rest) = text.strip_prefix(start) {
            let name = rest.split('`').next().unwrap_or_default();
            let last = parent.rsplit('.').next().unwrap_or_default();
            return Some(match parent {
                "" => name.to_owned(),
                _ if last == name => parent.to_owned(),
                _ => format!("{parent}.{name}"),
            });
        }
    }
    (!parent.is_empty()).then(|| parent.to_owned())
}

fn without_position(text: &str) -> String {
    text.rsplit_once(" at line ")
        .map_or(text, |(text, _)| text)
        .to_owned()
}

/// A whole number from 0 to 2^53 − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(value_type = u64, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
pub(crate) struct Whole(pub(crate) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor)
    }
}

struct WholeVisitor;

impl de::Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {UNITS_MAX}")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Whole, E> {
        if value > UNITS_MAX {
            return Err(E::custom(format_args!(
                "{value} is out of range: it must be a whole number from 0 to {UNITS_MAX}"
            )));
        }
        Ok(Whole(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Whole, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::custom(format_args!(
                "{value} is out of range: it must be a whole number from 0 to {UNITS_MAX}"
            ))),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Whole, E> {
        Err(E::custom(format_args!(
            "{value} is not acceptable: it must be a whole number from 0 to {UNITS_MAX}, without point or exponent"
        )))
    }
}

/// A whole number from -(2^53 − 1) to 2^53 − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = i64, minimum = -9_007_199_254_740_991_i64, maximum = 9_007_199_254_740_991_i64)]
pub(crate) struct Signed(pub(crate) i64);

impl<'de> Deserialize<'de> for Signed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SignedVisitor)
    }
}

struct SignedVisitor;

impl de::Visitor<'_> for SignedVisitor {
    type Value = Signed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from -{UNITS_MAX} to {UNITS_MAX}")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Signed, E> {
        match i64::try_from(value) {
            Ok(signed) => self.visit_i64(signed),
            Err(_) => Err(out_of_signed_range(value)),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Signed, E> {
        if value.unsigned_abs() > UNITS_MAX {
            return Err(out_of_signed_range(value));
        }
        Ok(Signed(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Signed, E> {
        Err(E::custom(format_args!(
            "{value} is not acceptable: it must be a whole number from -{UNITS_MAX} to {UNITS_MAX}, without point or \
             exponent"
        )))
    }
}

fn out_of_signed_range<E: de::Error>(value: impl fmt::Display) -> E {
    E::custom(format_args!(
        "{value} is out of range: it must be a whole number from -{UNITS_MAX} to {UNITS_MAX}"
    ))
}

/// A decimal number in thousandths: `1.5` is 1,500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = f64, minimum = 1, maximum = 10, example = 1.5)]
pub(crate) struct Milli(pub(crate) u32);

impl Serialize for Milli {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (f64::from(self.0) / 1_000.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Milli {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        let milli = (value * 1_000.0).round();
        if !(0.0..=1_000_000.0).contains(&milli) || (value * 1_000.0 - milli).abs() > 1e-6 {
            return Err(de::Error::custom(format_args!(
                "{value} is not acceptable: it must be a number from 1 to 10 with three decimals at most"
            )));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and its range was just checked"
        )]
        Ok(Self(milli as u32))
    }
}

/// Milliseconds to microseconds; refused when they overflow.
pub(crate) fn micros(field: &str, ms: Whole) -> Result<u64, Problem> {
    ms.0.checked_mul(1_000)
        .ok_or_else(|| Problem::field(field, format!("{field} ({}) is out of range", ms.0)))
}

/// Microseconds to milliseconds, rounded up: never promises too early a moment.
pub(crate) const fn millis_up(us: u64) -> u64 {
    us.div_ceil(1_000)
}

/// Microseconds to whole seconds, rounded up, at least 1: what `Retry-After` takes.
pub(crate) fn seconds_up(us: u64) -> u64 {
    us.div_ceil(1_000_000).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "tests"
    )]

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Probe {
        #[serde(default)]
        units: Option<Whole>,
        #[serde(default)]
        factor: Option<Milli>,
    }

    fn refusal(text: &str) -> String {
        let body = match parse::<Probe>(text.as_bytes()) {
            Ok(probe) => panic!("{text} was accepted as {probe:?}"),
            Err(problem) => problem,
        };
        format!("{body:?}")
    }

    #[test]
    fn whole_numbers_up_to_2_pow_53_minus_1_are_exact() {
        let probe: Probe = parse(br#"{"units":9007199254740991}"#).unwrap();
        assert_eq!(probe.units, Some(Whole(UNITS_MAX)));
    }

    #[test]
    fn anything_else_than_a_whole_number_in_range_is_refused_by_name() {
        for value in [
            "9007199254740992",
            "-1",
            "1.5",
            "1.0",
            "1e2",
            "\"7\"",
            "true",
            "[1]",
            "99999999999999999999999",
        ] {
            let text = refusal(&format!("{{\"units\":{value}}}"));
            assert!(
                text.contains("invalid_field") && text.contains("Some(\"units\")"),
                "{value}: {text}"
            );
            assert!(
                text.contains("from 0 to 9007199254740991"),
                "{value}: {text}"
            );
        }
    }

    #[test]
    fn a_factor_has_three_decimals_at_most() {
        let probe: Probe = parse(br#"{"factor":1.234}"#).unwrap();
        assert_eq!(probe.factor, Some(Milli(1_234)));
        for value in ["1.2345", "-1", "1e300"] {
            assert!(refusal(&format!("{{\"factor\":{value}}}")).contains("Some(\"factor\")"));
        }
    }

    #[test]
    fn unknown_and_duplicate_fields_are_named() {
        assert!(refusal(r#"{"unit":1}"#).contains("Some(\"unit\")"));
        assert!(refusal(r#"{"units":1,"units":2}"#).contains("Some(\"units\")"));
    }

    #[test]
    fn a_body_that_is_no_object_is_called_what_it_is() {
        for (text, kind) in [
            (" [1]", "an array"),
            ("\"units\"", "a string"),
            ("7", "a number"),
            ("true", "a boolean"),
            ("null", "null"),
        ] {
            let refusal = refusal(text);
            assert!(
                refusal.contains(&format!("the body is {kind}: it must be a JSON object")),
                "{refusal}"
            );
        }
    }

    #[test]
    fn our_types_are_called_what_json_calls_them() {
        #[derive(Debug, Deserialize)]
        struct Whole {
            #[serde(default)]
            _probe: Option<Probe>,
            #[serde(default)]
            _probes: Vec<Probe>,
            #[serde(default)]
            _name: Option<String>,
            #[serde(default)]
            _kind: Option<Kind>,
        }
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind {
            One,
        }
        for (text, says) in [
            (r#"{"_probe": 7}"#, "expected an object"),
            (r#"{"_probes": ["a"]}"#, "expected an object"),
            (r#"{"_probes": 7}"#, "expected an array"),
            (
                r#"{"_name": [7]}"#,
                "invalid type: array, expected a string",
            ),
            (
                r#"{"_name": {}}"#,
                "invalid type: object, expected a string",
            ),
            (r#"{"_probe": {"factor": "x"}}"#, "expected a number"),
            (r#"{"_kind": "two"}"#, "unknown value `two`, expected `one`"),
            (r#"{"_kind": 7}"#, "expected a string"),
        ] {
            let said = format!("{:?}", parse::<Whole>(text.as_bytes()).unwrap_err());
            assert!(said.contains(says), "{text}: {said}");
            for internal in [
                "Probe", "f64", "u32", "struct", "variant", "enum", "map", "sequence",
            ] {
                assert!(!said.contains(internal), "{text}: {said}");
            }
        }
    }

    #[test]
    fn broken_json_is_not_a_field_error() {
        for text in [
            "",
            "  ",
            "{",
            "{\"units\":1}}",
            "nonsense",
            "{\"units\":1} 2",
        ] {
            assert!(refusal(text).contains("invalid_json"), "{text:?}");
        }
    }
}
