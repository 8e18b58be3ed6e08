//! Leasehold's wire schema and the code generated from it, nothing else: no
//! domain type is known here.
#![allow(missing_docs, unreachable_pub, reason = "generated code")]

/// Version 1 of the protocol.
pub mod v1 {
    #![allow(clippy::all, clippy::pedantic, clippy::restriction)]
    tonic::include_proto!("leasehold.v1");
}

/// The schema itself: an encoded `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/leasehold.bin"));
