//! What is commonly put in the agent's place: a service that asks Redis about every
//! request, with a token bucket in Lua. It speaks the protocols that the agent speaks, so
//! that the same gateway on the same configuration can ask either. Knows nothing of
//! Leasehold.

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::any};
use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
    rate_limit_response::Code,
    rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
};
use leasehold_tests::LocalCluster;
use redis::{Script, aio::MultiplexedConnection};
use tonic::{Request, Response, Status, service::Routes};

use super::{Outcome, proxies::about};

/// A token bucket as it is usually written.
const BUCKET: &str = "local t=redis.call('TIME') local now=t[1]*1000000+t[2] \
    local s=redis.call('HMGET',KEYS[1],'l','t') local cap=tonumber(ARGV[1]) \
    local l=tonumber(s[1]) or cap local last=tonumber(s[2]) or now \
    l=math.min(cap,l+(now-last)*tonumber(ARGV[2])/1000000) local ok=0 \
    if l>=1 then l=l-1 ok=1 end redis.call('HSET',KEYS[1],'l',l,'t',now) return ok";

/// More than anybody asks for: what is measured is what an answer costs.
const CAPACITY: u64 = 1_000_000_000;

/// Redis, and the service in front of it. Both end when this is dropped.
pub(super) struct RedisCheck {
    pub(super) at: SocketAddr,
    _redis: tokio::process::Child,
}

impl RedisCheck {
    pub(super) async fn start(program: &Path, folder: &Path) -> Outcome<Self> {
        let port = LocalCluster::free_ports(1)?[0];
        let redis = tokio::process::Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(about("redis-server"))?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
        let give_up = tokio::time::Instant::now() + Duration::from_secs(30);
        let connection = loop {
            match client.get_multiplexed_async_connection().await {
                Ok(connection) => break connection,
                Err(error) if tokio::time::Instant::now() > give_up => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let check = Check(connection);
        let grpc = Routes::new(RateLimitServiceServer::new(check.clone())).into_axum_router();
        let service = Router::new()
            .route("/v1/check/nginx", any(nginx))
            .with_state(check)
            .merge(grpc);
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let at = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, service).await });
        Ok(Self { at, _redis: redis })
    }
}

#[derive(Clone)]
struct Check(MultiplexedConnection);

impl Check {
    async fn is_allowed(&self, key: &str) -> Result<bool, redis::RedisError> {
        thread_local! {
            static SCRIPT: Script = Script::new(BUCKET);
        }
        let script = SCRIPT.with(Clone::clone);
        let mut connection = self.0.clone();
        let allowed: u64 = script
            .key(key)
            .arg(CAPACITY)
            .arg(CAPACITY)
            .invoke_async(&mut connection)
            .await?;
        Ok(allowed == 1)
    }
}

async fn nginx(State(check): State<Check>, headers: axum::http::HeaderMap) -> StatusCode {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    let Some(key) = key else {
        return StatusCode::FORBIDDEN;
    };
    match check.is_allowed(key).await {
        Ok(true) => StatusCode::NO_CONTENT,
        Ok(false) => StatusCode::FORBIDDEN,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[tonic::async_trait]
impl RateLimitService for Check {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let mut code = Code::Ok;
        for descriptor in &request.descriptors {
            let entries = descriptor.entries.iter();
            let key: Vec<&str> = entries.map(|entry| entry.value.as_str()).collect();
            match self.is_allowed(&key.join("/")).await {
                Ok(true) => {}
                Ok(false) => code = Code::OverLimit,
                Err(error) => return Err(Status::unavailable(error.to_string())),
            }
        }
        Ok(Response::new(RateLimitResponse {
            overall_code: code.into(),
            ..RateLimitResponse::default()
        }))
    }
}
