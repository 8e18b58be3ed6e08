//! The agent's configuration: one TOML file, read into a type that cannot be wrong.
//! Knows nothing of sockets, requests and how it came to be read again.
//!
//! [`Config`] has two parts. [`Fixed`] is what the process was built with; a changed file
//! changes it at the next start. [`Rules`] are what requests are answered by, and are
//! replaced as a whole. Past 600 lines: every field of the file is checked in one place.

mod calling;
mod error;
mod key_template;
mod raw;
mod texts;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::HeaderName;
use leasehold_client::FailureMode;
use leasehold_doors::{ListenerFiles, Pem};
use serde::Deserialize;

pub(crate) use calling::Calling;
pub(crate) use error::ConfigError;
pub(crate) use key_template::{KeyTemplate, NoKey};
pub(crate) use texts::Texts;

use crate::ratelimit;
use raw::{Raw, RawBeforeContact, RawCheck, RawEndpoints, RawKey, RawRls};

/// All that one agent needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// What does not change while the process runs.
    pub(crate) fixed: Fixed,
    /// What requests are answered by.
    pub(crate) rules: Rules,
}

/// What does not change while the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    /// The name in the coordinator's books.
    pub(crate) holder: String,
    /// Coordinators' client URLs.
    pub(crate) endpoints: Vec<String>,
    /// Whom to trust among them, and as whom to call.
    pub(crate) calling: Calling,
    /// What becomes of keys of which no coordinator was ever heard.
    pub(crate) before_contact: FailureMode,
    /// The most keys that are kept.
    pub(crate) keys_max: u32,
    /// Whether two clocks are read at every request.
    pub(crate) strict_clock: bool,
    /// Where gateways connect by TCP.
    pub(crate) tcp: Option<SocketAddr>,
    /// TLS on that address.
    pub(crate) tls: Option<ListenerFiles>,
    /// Where gateways connect by a Unix socket.
    pub(crate) unix: Option<UnixSocket>,
    /// The most connections at once.
    pub(crate) connections_max: usize,
    /// The most requests at work at once.
    pub(crate) requests_max: usize,
    /// The most bytes of a request's headers.
    pub(crate) header_bytes_max: usize,
    /// How long an answer is remembered under its request's id.
    pub(crate) remember_for: Duration,
    /// The most ids that are remembered.
    pub(crate) remembered_max: usize,
    /// What to log, in the syntax of `RUST_LOG`.
    pub(crate) log_filter: String,
    /// How log lines look.
    pub(crate) log_format: LogFormat,
}

impl Fixed {
    /// The fields in which another one differs.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            holder,
            endpoints,
            calling,
            before_contact,
            keys_max,
            strict_clock,
            tcp,
            tls,
            unix,
            connections_max,
            requests_max,
            header_bytes_max,
            remember_for,
            remembered_max,
            log_filter,
            log_format,
        } = self;
        [
            ("holder", *holder != other.holder),
            ("coordinator.endpoints", *endpoints != other.endpoints),
            ("coordinator.ca", calling.ca != other.calling.ca),
            (
                "coordinator.certificate",
                calling.identity != other.calling.identity,
            ),
            (
                "coordinator.token_file",
                calling.token_file != other.calling.token_file,
            ),
            (
                "coordinator.before_contact",
                *before_contact != other.before_contact,
            ),
            ("coordinator.keys_max", *keys_max != other.keys_max),
            (
                "coordinator.strict_clock",
                *strict_clock != other.strict_clock,
            ),
            ("listen.tcp", *tcp != other.tcp),
            ("listen.tls", *tls != other.tls),
            ("listen.unix", *unix != other.unix),
            (
                "limits.connections_max",
                *connections_max != other.connections_max,
            ),
            ("limits.requests_max", *requests_max != other.requests_max),
            (
                "limits.header_bytes_max",
                *header_bytes_max != other.header_bytes_max,
            ),
            (
                "request_ids.remember_ms",
                *remember_for != other.remember_for,
            ),
            (
                "request_ids.remembered_max",
                *remembered_max != other.remembered_max,
            ),
            ("log.filter", *log_filter != other.log_filter),
            ("log.format", *log_format != other.log_format),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }
}

/// A Unix socket of a gateway's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The group that may connect; none: the process's own.
    pub(crate) group: Option<String>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What becomes of a request that the rules cannot place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unless {
    /// It is refused.
    #[default]
    Deny,
    /// It passes, uncharged and uncounted.
    Allow,
}

/// What becomes of a descriptor that brings a limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitOverride {
    /// The request is refused: budgets are the coordinator's alone.
    #[default]
    Deny,
    /// The descriptor's budget decides, whatever limit the descriptor brings.
    Ignore,
}

/// How Envoy is told that nobody can be asked and the policy fails closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnavailableAs {
    /// As over the limit, marked in the dynamic metadata: it never passes.
    #[default]
    OverLimit,
    /// As an error of the call: it passes if the filter's `failure_mode_deny` is false.
    Error,
}

/// What requests are answered by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// `/v1/check/NAME`; the empty name is `/v1/check`.
    pub(crate) checks: BTreeMap<String, Check>,
    /// Envoy's rate limit service.
    pub(crate) rls: Option<Rls>,
    /// The most descriptors of one request.
    pub(crate) descriptors_max: usize,
}

/// How a request's headers become a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) keys: Vec<KeyTemplate>,
    pub(crate) cost_header: Option<HeaderName>,
    pub(crate) lane_header: Option<HeaderName>,
    pub(crate) request_id_header: Option<HeaderName>,
    pub(crate) missing_key: Unless,
    pub(crate) bad_key: Unless,
    pub(crate) bad_cost: Unless,
    pub(crate) no_budget: Unless,
}

/// How Envoy's descriptors become charges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rls {
    pub(crate) mapping: Mapping,
    /// What the files say that has no effect, and is likely not meant so.
    pub(crate) notes: Vec<String>,
    pub(crate) request_id_header: Option<String>,
    pub(crate) no_rule: Unless,
    pub(crate) no_descriptor: Unless,
    pub(crate) limit_override: LimitOverride,
    pub(crate) unavailable: UnavailableAs,
}

/// Which key a descriptor is charged to.
#[derive(Clone, Debug)]
pub(crate) enum Mapping {
    /// The domain, and a segment for each entry, of these domains; none: of every one.
    Plain(Option<Vec<String>>),
    /// What the files of envoyproxy/ratelimit say.
    Ratelimit(Arc<ratelimit::Rules>),
}

impl Default for Mapping {
    fn default() -> Self {
        Self::Plain(None)
    }
}

/// The longest time for which answers are remembered: an id that comes again later is
/// another request's.
const REMEMBER_MS: std::ops::RangeInclusive<u64> = 100..=30_000;

impl Config {
    /// Reads and checks a file. `insecure` is as `listen.insecure = true`.
    ///
    /// # Errors
    /// Names the field, its value, what is allowed, and what to do.
    pub(crate) fn load(path: &Path, insecure: bool) -> Result<Self, ConfigError> {
        Self::parse(path, &Texts::read(path), insecure)
    }

    /// Checks what was found at a path.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn parse(path: &Path, texts: &Texts, insecure: bool) -> Result<Self, ConfigError> {
        let text = texts
            .own
            .as_ref()
            .map_err(|reason| ConfigError::Unreadable {
                path: path.to_owned(),
                reason: reason.clone(),
            })?;
        let raw: Raw = toml::from_str(text).map_err(|error| ConfigError::Malformed {
            path: path.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::check(raw, texts, folder, insecure).map_err(|reason| ConfigError::Invalid {
            path: path.to_owned(),
            reason,
        })
    }

    /// What is legal and probably not meant.
    pub(crate) fn notes(&self) -> &[String] {
        let rls = self.rules.rls.as_ref();
        rls.map_or(&[], |rls| rls.notes.as_slice())
    }

    fn check(raw: Raw, texts: &Texts, folder: &Path, insecure: bool) -> Result<Self, String> {
        let within = |field: &str, value: u64, range: std::ops::RangeInclusive<u64>| {
            if range.contains(&value) {
                return Ok(usize::try_from(value).unwrap_or(usize::MAX));
            }
            let (least, most) = range.into_inner();
            Err(format!(
                "{field} ({value}) is out of range: {least} to {most} are allowed"
            ))
        };
        let limits = &raw.limits;
        let holder = raw.holder.unwrap_or_else(own_name);
        if !(1..=128).contains(&holder.len()) {
            return Err(format!(
                "holder has {} bytes: 1 to 128 are allowed",
                holder.len()
            ));
        }
        let RawEndpoints::List(endpoints) = &raw.coordinator.endpoints;
        if endpoints.is_empty() {
            return Err("coordinator.endpoints is empty: name at least one, like \
                 \"http://127.0.0.1:7070\""
                .to_owned());
        }
        let calling = Calling::new(&raw.coordinator, folder)?;
        for endpoint in endpoints {
            calling.check_endpoint(endpoint)?;
        }
        within(
            "coordinator.keys_max",
            raw.coordinator.keys_max.into(),
            1..=1 << 20,
        )?;
        let fixed = Fixed {
            holder,
            before_contact: before_contact(&raw.coordinator)?,
            endpoints: endpoints.clone(),
            calling,
            keys_max: raw.coordinator.keys_max,
            strict_clock: raw.coordinator.strict_clock,
            tcp: tcp(&raw.listen, insecure)?,
            tls: tls(&raw.listen, folder)?,
            unix: unix(&raw.listen)?,
            connections_max: within("limits.connections_max", limits.connections_max, 1..=65_536)?,
            requests_max: within("limits.requests_max", limits.requests_max, 1..=1 << 20)?,
            header_bytes_max: within(
                "limits.header_bytes_max",
                limits.header_bytes_max,
                8_192..=1 << 20,
            )?,
            remember_for: {
                let ms = raw.request_ids.remember_ms;
                within("request_ids.remember_ms", ms, REMEMBER_MS)?;
                Duration::from_millis(ms)
            },
            remembered_max: within(
                "request_ids.remembered_max",
                raw.request_ids.remembered_max,
                1..=1 << 20,
            )?,
            log_filter: log_filter(raw.log.filter)?,
            log_format: raw.log.format,
        };
        let mut checks = BTreeMap::new();
        if let Some(check) = raw.check {
            checks.insert(String::new(), Check::new("check", check)?);
        }
        for (name, check) in raw.checks {
            check_name(&name)?;
            let check = Check::new(&format!("checks.{name}"), check)?;
            checks.insert(name, check);
        }
        let rules = Rules {
            checks,
            rls: raw.rls.map(|rls| Rls::new(rls, texts)).transpose()?,
            descriptors_max: within("limits.descriptors_max", limits.descriptors_max, 1..=256)?,
        };
        if rules.checks.is_empty() && rules.rls.is_none() {
            return Err(
                "there is neither [check] nor [checks.NAME] nor [rls], so that nothing would be \
                 answered: say with [check] key = \"edge/{header:x-api-key}\" how requests \
                 become keys, or with [rls] that Envoy's descriptors do"
                    .to_owned(),
            );
        }
        Ok(Self { fixed, rules })
    }
}

fn own_name() -> String {
    let name = rustix::system::uname();
    let machine = name.nodename().to_string_lossy().into_owned();
    format!("agent@{machine}")
}

fn before_contact(raw: &raw::RawCoordinator) -> Result<FailureMode, String> {
    match (raw.before_contact, raw.emergency_units) {
        (RawBeforeContact::Closed, None) => Ok(FailureMode::Closed),
        (RawBeforeContact::Open, None) => Ok(FailureMode::Open),
        (RawBeforeContact::Emergency, units) => {
            let units = units.unwrap_or(1);
            if units == 0 {
                return Err("coordinator.emergency_units (0) must be at least 1".to_owned());
            }
            Ok(FailureMode::Emergency { units })
        }
        (_, Some(units)) => Err(format!(
            "coordinator.emergency_units ({units}) is of use with before_contact = \
             \"emergency\" only: change that, or remove it"
        )),
    }
}

fn tcp(raw: &raw::RawListen, insecure: bool) -> Result<Option<SocketAddr>, String> {
    let is_nowhere = raw.tcp.is_none() && raw.unix.is_none();
    let is_mutual = raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let tcp = match &raw.tcp {
        None if is_nowhere => Some(SocketAddr::from(([127, 0, 0, 1], 7080))),
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            format!("listen.tcp ({text:?}): write IP:PORT, as in 127.0.0.1:7080; no names")
        })?),
    };
    match tcp {
        Some(addr) if !addr.ip().is_loopback() && !raw.insecure && !insecure && !is_mutual => {
            Err(format!(
                "listen.tcp ({addr}) is reachable from other machines, and whoever reaches it can \
                 spend everybody's quota: use a loopback address or listen.unix, or let gateways \
                 show certificates ([listen.tls] with client_ca), or say --insecure (insecure = \
                 true) if only trusted hosts can reach it"
            ))
        }
        tcp => Ok(tcp),
    }
}

/// Of TCP; a Unix socket has its owner and its group. Files that are named stand beside the
/// one that names them.
fn tls(raw: &raw::RawListen, folder: &Path) -> Result<Option<ListenerFiles>, String> {
    let Some(tls) = &raw.tls else {
        return Ok(None);
    };
    if raw.tcp.is_none() && raw.unix.is_some() {
        return Err(
            "[listen.tls] is of use with listen.tcp only: add that, or remove it".to_owned(),
        );
    }
    let pem = |field, path: &Path| Pem {
        field,
        path: folder.join(path),
    };
    let client_ca = tls.client_ca.as_deref();
    Ok(Some(ListenerFiles {
        certificate: pem("listen.tls.certificate", &tls.certificate),
        key: pem("listen.tls.key", &tls.key),
        client_ca: client_ca.map(|path| pem("listen.tls.client_ca", path)),
        node_ca: None,
        must_show: client_ca.is_some(),
    }))
}

fn unix(raw: &raw::RawListen) -> Result<Option<UnixSocket>, String> {
    let Some(path) = raw.unix.clone() else {
        return match &raw.unix_group {
            None => Ok(None),
            Some(group) => Err(format!(
                "listen.unix_group ({group}) is of use with listen.unix only: add that, or \
                 remove it"
            )),
        };
    };
    if !path.is_absolute() || path.file_name().is_none() {
        return Err(format!(
            "listen.unix ({}) must be an absolute path of a file, like /run/leasehold/agent.sock",
            path.display()
        ));
    }
    // The kernel has room for 107 bytes, and the socket is made beside its place.
    let bytes = path.as_os_str().len();
    if bytes > 96 {
        return Err(format!(
            "listen.unix has {bytes} bytes: 96 at most are allowed for the path of a socket"
        ));
    }
    let group = raw.unix_group.clone();
    Ok(Some(UnixSocket { path, group }))
}

fn log_filter(filter: String) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::try_new(&filter) {
        Ok(_) => Ok(filter),
        Err(error) => Err(format!(
            "log.filter ({filter}) is not a filter like \"info,leasehold_agent=debug\": {error}"
        )),
    }
}

/// What stands in a path.
fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
        return Err(format!(
            "[checks.{name}] has a name that is no part of a path: 1 to 64 letters, digits, \
             '-' and '_' are allowed"
        ));
    }
    if name == "nginx" {
        return Err(
            "[checks.nginx] has the name of nginx's own path: [check] is served at \
             /v1/check/nginx already; choose another name"
                .to_owned(),
        );
    }
    Ok(())
}

fn header(field: &str, name: Option<String>) -> Result<Option<HeaderName>, String> {
    name.map(|name| {
        HeaderName::try_from(name.as_str())
            .map_err(|_| format!("{field} ({name:?}) is no name of a header"))
    })
    .transpose()
}

impl Check {
    fn new(field: &str, raw: RawCheck) -> Result<Self, String> {
        let texts = match raw.key {
            RawKey::One(text) => vec![text],
            RawKey::Several(texts) => texts,
        };
        if !(1..=8).contains(&texts.len()) {
            return Err(format!(
                "{field}.key lists {} templates: 1 to 8 are allowed",
                texts.len()
            ));
        }
        let mut keys: Vec<KeyTemplate> = Vec::with_capacity(texts.len());
        for text in texts {
            let template = KeyTemplate::parse(&text)
                .map_err(|reason| format!("{field}.key ({text:?}): {reason}"))?;
            if keys.contains(&template) {
                return Err(format!(
                    "{field}.key lists {text:?} twice: list each key once, and charge more of \
                     it with cost_header"
                ));
            }
            keys.push(template);
        }
        Ok(Self {
            keys,
            cost_header: header(&format!("{field}.cost_header"), raw.cost_header)?,
            lane_header: header(&format!("{field}.lane_header"), raw.lane_header)?,
            request_id_header: header(
                &format!("{field}.request_id_header"),
                raw.request_id_header,
            )?,
            missing_key: raw.missing_key,
            bad_key: raw.bad_key,
            bad_cost: raw.bad_cost,
            no_budget: raw.no_budget,
        })
    }
}

impl Rls {
    fn new(raw: RawRls, texts: &Texts) -> Result<Self, String> {
        let mut notes = Vec::new();
        let mapping = match (&raw.domains, raw.ratelimit_files.is_empty()) {
            (Some(_), false) => {
                return Err(
                    "rls has domains and ratelimit_files: the files name their domains, so \
                     remove the one or the other"
                        .to_owned(),
                );
            }
            (_, false) => {
                let files = ratelimit_files(texts)?;
                notes.extend(files.notes().iter().map(ToString::to_string));
                Mapping::Ratelimit(Arc::new(files.rules()))
            }
            (_, true) => {
                check_domains(raw.domains.as_deref())?;
                Mapping::Plain(raw.domains)
            }
        };
        let request_id = header("rls.request_id_header", raw.request_id_header)?;
        Ok(Self {
            mapping,
            notes,
            request_id_header: request_id.map(|name| name.as_str().to_owned()),
            no_rule: raw.no_rule,
            no_descriptor: raw.no_descriptor,
            limit_override: raw.limit_override,
            unavailable: raw.unavailable,
        })
    }
}

fn check_domains(domains: Option<&[String]>) -> Result<(), String> {
    let Some(domains) = domains else {
        return Ok(());
    };
    if domains.is_empty() {
        return Err(
            "rls.domains is empty, so that every request would be one without a rule: list the \
             domains, or leave it out to take every one"
                .to_owned(),
        );
    }
    for domain in domains {
        leasehold_key::Key::new([domain])
            .map_err(|error| format!("rls.domains has {domain:?}: {error}"))?;
    }
    Ok(())
}

fn ratelimit_files(texts: &Texts) -> Result<ratelimit::Config, String> {
    let mut files = Vec::with_capacity(texts.ratelimit.len());
    for (path, text) in &texts.ratelimit {
        let name = path.display().to_string();
        let text = text
            .as_deref()
            .map_err(|reason| format!("rls.ratelimit_files: cannot read {name}: {reason}"))?;
        files.push((name, text));
    }
    let listed = files.iter().map(|(name, text)| (name.as_str(), *text));
    ratelimit::Config::parse(listed).map_err(|problems| format!("rls.ratelimit_files:\n{problems}"))
}

#[cfg(test)]
mod tests;
