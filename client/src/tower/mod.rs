//! Quotas as a `tower` layer: in axum, on `tonic::transport::Server::layer`, and around
//! any service that takes `http` requests. Knows no server and no router, and reads no
//! bodies.
//!
//! ```no_run
//! use leasehold_client::{Client, tower::{Charge, QuotaLayer, extension}};
//!
//! /// What the layer that authenticates has put into the request.
//! #[derive(Clone)]
//! struct Caller { tenant: String, user: String }
//!
//! # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
//! let quotas = QuotaLayer::new(client)
//!     .charge(Charge::to("tenant")?.by(extension(|caller: &Caller| caller.tenant.clone())))
//!     .charge(Charge::to("user")?
//!         .by(extension(|caller: &Caller| caller.tenant.clone()))
//!         .by(extension(|caller: &Caller| caller.user.clone())))
//!     .exempt(|request| request.uri.path() == "/healthz");
//! // axum: `router.layer(quotas)`; tonic: `Server::builder().layer(quotas)`.
//! # let _ = quotas;
//! # Ok(())
//! # }
//! ```
//!
//! # Whose quota
//!
//! A [`Charge`] names the key that a request pays from: segments that are the same for
//! all requests, and segments that an [`Identify`] finds in each. It should look at what
//! authentication has *proved*, so the layer belongs behind the one that authenticates
//! (inside of it, in axum: added before it). A header is an identity only if whoever
//! sends it cannot choose it; an address is a makeshift for callers who are not known,
//! see [`Address`].
//!
//! An identity becomes **one** segment, however it is written: a `/` in it is escaped,
//! so nobody's name reaches into another key. One that no segment can be (`.`, `..`) or
//! that is longer than 128 bytes becomes `sha256:` and its hash, and so does one that
//! begins with that word itself: different identities never share a key. An empty one is
//! none.
//!
//! A request without an identity is refused with 403 unless [`QuotaLayer::missing`] or
//! [`Charge::or`] say otherwise; one whose identity is ambiguous (a header that is there
//! twice) is refused with 400 in any case.
//!
//! Preflights of browsers carry no identity: put the layer that answers them around this
//! one, or exempt them.
//!
//! # Several charges
//!
//! All of them are paid or none is. State is bounded by the client's `keys_max`: the
//! layer keeps none of its own.
//!
//! # gRPC
//!
//! Requests whose content type is gRPC's are refused with a status of gRPC, in a response
//! without a body (see [`Answer::grpc_status`](crate::http::Answer::grpc_status)).

mod address;
mod charge;
mod identity;
mod layer;
mod service;

pub use ::http::request::Parts;
pub use address::Address;
pub use charge::Charge;
pub use identity::{Found, Identify, extension, header, route};
pub use ipnet::IpNet;
pub use layer::{Missing, QuotaLayer};
pub use service::{Body, QuotaService};
