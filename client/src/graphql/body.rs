//! A body as servers of every kind read it: what two of them could read differently is no
//! request. Knows nothing of queries.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// The requests in a body.
pub(super) enum Body {
    Batch(Vec<Request>),
    One(Request),
}

/// One request.
pub(super) struct Request {
    pub(super) query: Option<String>,
    pub(super) operation_name: Option<String>,
    pub(super) variables: Value,
}

impl Body {
    /// None: it is no request, or could be read in two ways.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let Unambiguous(value) = serde_json::from_slice(bytes).ok()?;
        match value {
            Value::Array(batch) => {
                let requests: Option<Vec<Request>> = batch.into_iter().map(request).collect();
                requests.map(Self::Batch)
            }
            value => request(value).map(Self::One),
        }
    }
}

fn request(value: Value) -> Option<Request> {
    let Value::Object(mut fields) = value else {
        return None;
    };
    if fields.keys().any(|field| is_nearly_known(field)) {
        return None;
    }
    Some(Request {
        query: text(fields.remove("query"))?,
        operation_name: text(fields.remove("operationName"))?,
        variables: fields.remove("variables").unwrap_or_default(),
    })
}

/// Outer none: it is there, and no text.
fn text(value: Option<Value>) -> Option<Option<String>> {
    match value {
        None | Some(Value::Null) => Some(None),
        Some(Value::String(text)) => Some(Some(text)),
        Some(_) => None,
    }
}

/// Some servers take a field whatever the case of its letters.
fn is_nearly_known(field: &str) -> bool {
    let folded = |text: &str| text.to_lowercase().to_uppercase();
    ["query", "operationName", "variables"]
        .into_iter()
        .any(|known| field != known && folded(field) == folded(known))
}

/// A value in which no object has a field twice.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without repeated fields")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Unambiguous(value))) = fields.next_entry::<String, _>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a field is there twice"));
            }
        }
        Ok(Value::Object(object))
    }
}
