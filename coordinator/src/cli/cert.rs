//! `leasehold cert`: certificates for a try, a development machine or a small
//! installation. Talks to no node, and knows nothing of what the certificates are shown
//! for: the coordinator takes any authority's.
//!
//! There are two authorities, because a node believes another node far more than a
//! gateway: whoever has a certificate for callers must not pass for a node.

mod files;
mod sign;

use std::path::PathBuf;

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
use rustls::pki_types::{DnsName, ServerName};
use serde_json::json;

use super::{Answer, CliError, private_file};
use files::Pair;
use sign::{Authority, Leaf};

/// Of an authority: the nodes, and the gateways and people.
const NODE_CA: &str = "node-ca";
const CLIENT_CA: &str = "client-ca";
/// Where a node can be reached that was given no address.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// What to make.
#[derive(Debug, clap::Subcommand)]
pub(super) enum CertCommand {
    /// The two authorities: one signs nodes and nobody else, the other gateways and people
    Ca {
        /// The folder for node-ca.pem, client-ca.pem and their keys
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// For how many days
        #[arg(long, default_value_t = 3_650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
        days: u32,
        #[command(flatten)]
        how: How,
    },
    /// A node's certificate, to serve and to call other nodes with
    Node {
        #[command(flatten)]
        leaf: LeafFlags,
        /// A name or IP address by which it is called; once for each [default: localhost,
        /// 127.0.0.1 and ::1]
        #[arg(long, value_name = "HOST")]
        host: Vec<String>,
    },
    /// A gateway's certificate
    Gateway {
        #[command(flatten)]
        leaf: LeafFlags,
    },
    /// A person's certificate, for the command line
    Operator {
        #[command(flatten)]
        leaf: LeafFlags,
    },
}

/// How files are written and what is printed.
#[derive(Debug, clap::Args)]
pub(super) struct How {
    /// Replace files that are there
    #[arg(long)]
    force: bool,
    /// Print JSON, for machines
    #[arg(long)]
    json: bool,
}

/// What every certificate but an authority's takes.
#[derive(Debug, clap::Args)]
pub(super) struct LeafFlags {
    /// Where `leasehold cert ca` put the authorities
    #[arg(long, value_name = "DIR")]
    ca_dir: PathBuf,
    /// Whom it names: letters, digits and . _ @ -
    #[arg(long)]
    name: String,
    /// The folder for NAME.pem and NAME-key.pem [default: that of the authorities]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// For how many days
    #[arg(long, default_value_t = 397, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    days: u32,
    #[command(flatten)]
    how: How,
}

impl CertCommand {
    pub(super) fn is_json(&self) -> bool {
        match self {
            Self::Ca { how, .. } => how.json,
            Self::Node { leaf, .. } | Self::Gateway { leaf } | Self::Operator { leaf } => {
                leaf.how.json
            }
        }
    }

    pub(super) fn run(&self) -> Result<Answer, CliError> {
        match self {
            Self::Ca { out, days, how } => {
                let pairs = [NODE_CA, CLIENT_CA].map(|name| Pair::new(out, name));
                files::must_be_free(&pairs, how.force)?;
                let made = [
                    sign::authority("Leasehold nodes", *days)?,
                    sign::authority("Leasehold clients", *days)?,
                ];
                private_file::make_folder(out)?;
                for (pair, made) in pairs.iter().zip(&made) {
                    pair.write(made, how.force)?;
                }
                Ok(written(&pairs, &after_ca(out, &pairs)))
            }
            Self::Node { leaf, host } => {
                let hosts = match host.is_empty() {
                    true => LOOPBACK.map(str::to_owned).to_vec(),
                    false => checked_hosts(host)?,
                };
                let purposes = vec![ServerAuth, ClientAuth];
                let pair = leaf.make(NODE_CA, hosts, purposes)?;
                let next = after_node(leaf, &pair);
                Ok(written(&[pair], &next))
            }
            Self::Gateway { leaf } => leaf.client(after_gateway),
            Self::Operator { leaf } => leaf.client(after_operator),
        }
    }
}

impl LeafFlags {
    fn client(&self, next: fn(&Self, &Pair) -> String) -> Result<Answer, CliError> {
        // A name that no host could have is the common name alone.
        let names = DnsName::try_from(self.name.as_str()).is_ok();
        let names = names.then(|| self.name.clone()).into_iter().collect();
        let pair = self.make(CLIENT_CA, names, vec![ClientAuth])?;
        let next = next(self, &pair);
        Ok(written(&[pair], &next))
    }

    fn make(
        &self,
        ca: &str,
        hosts: Vec<String>,
        purposes: Vec<rcgen::ExtendedKeyUsagePurpose>,
    ) -> Result<Pair, CliError> {
        check_name(&self.name)?;
        let out = self.out.as_ref().unwrap_or(&self.ca_dir);
        let pair = Pair::new(out, &self.name);
        files::must_be_free(std::slice::from_ref(&pair), self.how.force)?;
        let authority = Authority::open(&Pair::new(&self.ca_dir, ca))?;
        let made = authority.sign(Leaf {
            name: &self.name,
            hosts,
            purposes,
            days: self.days,
        })?;
        private_file::make_folder(out)?;
        pair.write(&made, self.how.force)?;
        Ok(pair)
    }
}

/// It becomes a file's name and a common name, which have their own ideas of names.
fn check_name(name: &str) -> Result<(), CliError> {
    let is_good = (1..=64).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte));
    let is_taken = [NODE_CA, CLIENT_CA].contains(&name) || name.ends_with("-key");
    if is_good && !is_taken {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "--name {name:?} must be 1 to 64 letters, digits and . _ @ -, begin with a letter, digit or _, and be neither \
         {NODE_CA} nor {CLIENT_CA} nor end with -key"
    )))
}

fn checked_hosts(hosts: &[String]) -> Result<Vec<String>, CliError> {
    for host in hosts {
        ServerName::try_from(host.as_str()).map_err(|_| {
            CliError::Usage(format!(
                "--host {host:?} must be a name like node1.internal or an IP address, without a port"
            ))
        })?;
    }
    Ok(hosts.to_vec())
}

fn written(pairs: &[Pair], next: &str) -> Answer {
    let files: Vec<String> = pairs
        .iter()
        .flat_map(|pair| [&pair.certificate, &pair.key])
        .map(|path| path.display().to_string())
        .collect();
    Answer {
        text: format!("wrote {}\n\n{next}", files.join(", ")),
        value: json!({ "files": files }),
    }
}

fn after_ca(out: &std::path::Path, pairs: &[Pair; 2]) -> String {
    let [nodes, clients] = pairs;
    let out = out.display();
    format!(
        "These are for development and small installations: whoever has a CA's key makes anybody. Keep both keys away \
         from the nodes; any other PKI will do as well.\nNext:\n  leasehold cert node --ca-dir {out} --name node1 \
         --host node1.internal\n  leasehold cert gateway --ca-dir {out} --name edge-eu\n  leasehold cert operator \
         --ca-dir {out} --name ada\nNodes get {} and {}, callers get {}.",
        nodes.certificate.display(),
        clients.certificate.display(),
        nodes.certificate.display(),
    )
}

fn after_node(leaf: &LeafFlags, pair: &Pair) -> String {
    let ca = |name: &str| Pair::new(&leaf.ca_dir, name).certificate;
    format!(
        "In the node's file:\n[tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n[tls.peers]\nca = {:?}\n[auth]\n\
         identities = \"identities.toml\"",
        pair.certificate,
        pair.key,
        ca(CLIENT_CA),
        ca(NODE_CA),
    )
}

fn after_gateway(leaf: &LeafFlags, pair: &Pair) -> String {
    let ca = Pair::new(&leaf.ca_dir, NODE_CA).certificate;
    format!(
        "In the nodes' identities file, with the keys that it may spend:\n[[identity]]\nname = {:?}\nrole = \
         \"gateway\"\nkeys = [\"{}/*\"]\ncertificate = true\nIn an agent's file:\n[coordinator]\nendpoints = \
         [\"https://node1.internal:7070\"]\nca = {ca:?}\ncertificate = {:?}\nkey = {:?}",
        leaf.name, leaf.name, pair.certificate, pair.key,
    )
}

fn after_operator(leaf: &LeafFlags, pair: &Pair) -> String {
    let ca = Pair::new(&leaf.ca_dir, NODE_CA).certificate;
    format!(
        "In the nodes' identities file, with the role that is meant (admin, operator or viewer):\n[[identity]]\nname = \
         {:?}\nrole = \"operator\"\ncertificate = true\nThen:\nexport LEASEHOLD_ENDPOINT=https://node1.internal:7070 \
         LEASEHOLD_CA={}\nexport LEASEHOLD_CERT={} LEASEHOLD_KEY={}",
        leaf.name,
        ca.display(),
        pair.certificate.display(),
        pair.key.display(),
    )
}

#[cfg(test)]
mod tests;
