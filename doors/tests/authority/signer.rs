//! Authorities for tests, made where they are needed: beside the doors, and in whoever has them or
//! calls at them.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

/// The last day of a certificate that has expired.
pub(crate) const PAST: (i32, u8, u8) = (2001, 1, 1);

pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A chain and its key.
pub(crate) type Own = (String, String);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn issue(&self, names: &[&str]) -> Own {
        self.issue_to("somebody", names, None)
    }

    pub(crate) fn issue_to(
        &self,
        common_name: &str,
        names: &[&str],
        until: Option<(i32, u8, u8)>,
    ) -> Own {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !common_name.is_empty() {
            let name = common_name.to_owned();
            params.distinguished_name.push(DnType::CommonName, name);
        }
        if let Some((year, month, day)) = until {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(year, month, day);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}
