//! The same answers over gRPC. Knows no server.

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Answer, Reason};

impl Answer {
    /// The status of a refusal, with `google.rpc.RetryInfo` if a later attempt may
    /// succeed; none if the request may go ahead.
    ///
    /// A quota that is used up is `RESOURCE_EXHAUSTED`, and so is a request that costs
    /// more than its whole quota, without `RetryInfo`. Nobody to ask is `UNAVAILABLE`, no
    /// quota `PERMISSION_DENIED`, no identity `UNAUTHENTICATED`, an unclear one
    /// `INVALID_ARGUMENT`, and a gateway that is set up wrongly `INTERNAL`.
    #[must_use]
    pub fn grpc_status(&self) -> Option<Status> {
        let reason = self.reason?;
        let code = match reason {
            Reason::QuotaExceeded | Reason::TooExpensive => Code::ResourceExhausted,
            Reason::ReducedCapacity => Code::Unavailable,
            Reason::NoQuota => Code::PermissionDenied,
            Reason::NoIdentity => Code::Unauthenticated,
            Reason::BadIdentity => Code::InvalidArgument,
            Reason::Misconfigured => Code::Internal,
        };
        let message = reason.detail().unwrap_or(reason.title());
        Some(match self.retry_after {
            Some(after) => {
                let details = ErrorDetails::with_retry_info(Some(after));
                Status::with_error_details(code, message, details)
            }
            None => Status::new(code, message),
        })
    }
}
