//! The YAML configuration of envoyproxy/ratelimit, so that a user can swap the agent in:
//! which key a descriptor is counted under, and which budgets a coordinator needs for it.
//!
//! Does not know the gateway's protocol, nor how a key is spent from, and asks nobody.
//! [`Config::read`] reads files, [`Rules`] finds keys, [`Plan`] names policies and budgets.
//!
//! A key has the domain as its first segment and then one `key=value` segment for each
//! entry of the descriptor: `messaging/message_type=marketing/to_number=2061111111`. All
//! values that match a wildcard with `share_threshold` share the key that has the wildcard
//! as its value.
//!
//! # What is otherwise than in envoyproxy/ratelimit
//!
//! - **Windows slide.** There, a limit "per minute" counts from one full minute of the clock
//!   to the next, so that twice the limit passes around a boundary. Here `second` to `week`
//!   are the most that is admitted in *any* interval of that length, which is stricter; that
//!   is the point. A week still is one of the windows that a coordinator allows (up to 31
//!   days), so it slides like the shorter ones.
//! - **Months and years are the calendar's**, in UTC, not 30 and 365 days counted from 1970:
//!   they are longer than a window may be, and people mean the calendar by them.
//! - **All or nothing.** There, each descriptor of a request is counted although another one
//!   refuses it. Here a refused request costs nothing.
//! - **Entries are compared field by field.** There, the texts `key_value` are compared, so
//!   that the entry `a_b` without a value matches what is meant for the key `a` with the
//!   value `b`.
//! - **A refused value is a refusal.** A key has at most 512 bytes; a descriptor whose values
//!   make a longer one is [`Decision::NoKey`], and must not pass as if no rule was there.
//! - What a rule cannot have here is an error rather than ignored: see [`Config::read`].
//!
//! A descriptor's own `limit` in a request, which overrides the configured one there, is
//! the request's and not looked at here.

mod circle;
mod descriptor;
mod name;
mod plan;
mod problem;
mod read;
mod rules;
mod segment;
mod siblings;
mod wording;
mod yaml;

pub use name::policy_name;
pub use plan::{Plan, Planned};
pub use problem::{Problem, Problems};
pub use read::Config;
pub use rules::{Decision, Rules};
pub use yaml::Place;
