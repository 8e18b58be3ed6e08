//! Keys and signatures, all of them rcgen's. Knows no files but an authority's own.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use leasehold_credentials::read_private;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use x509_parser::{certificate::X509Certificate, pem::parse_x509_pem};

use super::{CliError, files::Pair};

/// A certificate counts from a little before it was made: clocks differ.
const BACKDATED: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// A certificate and its key, in PEM.
pub(super) struct Made {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// What is to be signed.
pub(super) struct Leaf<'a> {
    pub(super) name: &'a str,
    /// DNS names and IP addresses.
    pub(super) hosts: Vec<String>,
    pub(super) purposes: Vec<ExtendedKeyUsagePurpose>,
    pub(super) days: u32,
}

/// Who signs.
pub(super) struct Authority(Issuer<'static, KeyPair>, SystemTime);

/// A new authority, which signs for itself.
pub(super) fn authority(name: &str, days: u32) -> Result<Made, CliError> {
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let mut params = params(Vec::new(), days)?;
    // Two of the same name would be taken for each other when a chain is looked for.
    let mut which = [0; 4];
    getrandom::fill(&mut which).map_err(|error| failed(&error))?;
    let name = format!("{name} {:08x}", u32::from_be_bytes(which));
    params.distinguished_name.push(DnType::CommonName, name);
    // It signs callers and servers, and no further authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    Ok(Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

impl Authority {
    /// Reads one that [`authority`] made, or any other of the same form.
    pub(super) fn open(pair: &Pair) -> Result<Self, CliError> {
        let unusable = |what: String| CliError::Failed {
            code: "unusable_credentials",
            detail: format!("--ca-dir: {} {what}", pair.certificate.display()),
        };
        let pem = fs::read_to_string(&pair.certificate).map_err(|error| {
            unusable(format!(
                "cannot be read: {error}; `leasehold cert ca --out DIR` makes the authorities"
            ))
        })?;
        let key = read_private(&pair.key).map_err(|what| CliError::Failed {
            code: "unusable_credentials",
            detail: format!("--ca-dir: the key {} {what}", pair.key.display()),
        })?;
        let key = String::from_utf8(key)
            .ok()
            .and_then(|text| KeyPair::from_pem(&text).ok())
            .ok_or_else(|| unusable("has no private key in PEM beside it".to_owned()))?;
        let (_, der) = parse_x509_pem(pem.as_bytes())
            .map_err(|error| unusable(format!("is no certificate in PEM: {error}")))?;
        let certificate = der
            .parse_x509()
            .map_err(|error| unusable(format!("is no certificate: {error}")))?;
        if !certificate.is_ca() {
            return Err(unusable("is no authority's certificate".to_owned()));
        }
        if certificate.public_key().raw != key.subject_public_key_info() {
            let beside = pair.key.display();
            return Err(unusable(format!("and {beside} do not belong together")));
        }
        let ends = ends_at(&certificate);
        let issuer = Issuer::from_ca_cert_pem(&pem, key)
            .map_err(|error| unusable(format!("cannot sign: {error}")))?;
        Ok(Self(issuer, ends))
    }

    pub(super) fn sign(&self, leaf: Leaf<'_>) -> Result<Made, CliError> {
        let Self(issuer, ends) = self;
        if SystemTime::now() + DAY * leaf.days > *ends {
            return Err(CliError::Usage(format!(
                "--days {}: the authority itself does not last as long; say fewer, or make new authorities",
                leaf.days
            )));
        }
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let mut params = params(leaf.hosts, leaf.days)?;
        params
            .distinguished_name
            .push(DnType::CommonName, leaf.name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = leaf.purposes;
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&key, issuer)
            .map_err(|error| failed(&error))?;
        Ok(Made {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn params(hosts: Vec<String>, days: u32) -> Result<CertificateParams, CliError> {
    let mut params = CertificateParams::new(hosts).map_err(|error| failed(&error))?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + DAY * days).into();
    Ok(params)
}

fn ends_at(certificate: &X509Certificate<'_>) -> SystemTime {
    let seconds = certificate.validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

fn failed(error: &dyn std::error::Error) -> CliError {
    CliError::Failed {
        code: "internal",
        detail: format!("no certificate could be made: {error}"),
    }
}
