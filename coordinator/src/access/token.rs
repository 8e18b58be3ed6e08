//! The secret that an identity proves itself by: made, read, hashed and compared. Does not
//! know whose it is. What is kept of a token is its hash; the text itself is shown once,
//! by [`Token::reveal`], and never by `Debug`.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What every token begins with.
pub(crate) const PREFIX: &str = "lh_";
/// Bytes of randomness in the public part.
const ID_BYTES: usize = 6;
/// Bytes of randomness in the secret part.
const SECRET_BYTES: usize = 32;

/// Names a token in the identities file; no secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TokenId(Box<str>);

impl TokenId {
    /// Reads 12 lower-case hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == ID_BYTES * 2 && is_hex(text);
        is_id.then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A token's whole text.
#[derive(Clone)]
pub(crate) struct Token {
    id: TokenId,
    text: String,
}

impl Token {
    /// Draws one; none: the operating system has no randomness now.
    pub(crate) fn create() -> Option<Self> {
        let mut bytes = [0_u8; ID_BYTES + SECRET_BYTES];
        getrandom::fill(&mut bytes).ok()?;
        let (id, secret) = bytes.split_at(ID_BYTES);
        let id = hex(id);
        let text = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        Self::parse(&text)
    }

    /// Reads one as it was shown; none when it has another form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let id = TokenId::parse(id)?;
        let secret = URL_SAFE_NO_PAD.decode(secret).ok()?;
        (secret.len() == SECRET_BYTES).then(|| Self {
            id,
            text: text.to_owned(),
        })
    }

    pub(crate) const fn id(&self) -> &TokenId {
        &self.id
    }

    pub(crate) fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.text.as_bytes()).into())
    }

    /// The text itself, for whoever asked for a new one.
    pub(crate) fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token({}, …)", self.id.as_str())
    }
}

/// What is kept of a token. Compared in constant time only.
#[derive(Clone, Copy)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    /// Stands where no token is known: nothing hashes to it, as far as anybody can tell.
    pub(crate) const NOBODYS: Self = Self([0; 32]);

    /// Reads 64 lower-case hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !is_hex(text) {
            return None;
        }
        let mut bytes = [0_u8; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).ok()?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(bytes))
    }

    pub(crate) fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// Takes the same time whatever differs.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// Not even the hash: a log is read by more people than the file.
impl fmt::Debug for TokenHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenHash(…)")
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Eq for TokenHash {}

/// Takes what looks like a token out of a text that somebody wrote.
pub(crate) fn without_tokens(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(PREFIX) {
        let (before, from) = rest.split_at(at);
        clean.push_str(before);
        let length = from
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-')
            .unwrap_or(from.len());
        clean.push_str(if length > PREFIX.len() {
            "lh_…"
        } else {
            PREFIX
        });
        rest = &from[length..];
    }
    clean.push_str(rest);
    clean
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A String takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_token_is_drawn_shown_and_read_again_and_no_two_are_the_same() {
        let token = Token::create().unwrap();
        let again = Token::parse(token.reveal()).unwrap();
        assert_eq!(again.id(), token.id());
        assert!(again.hash().is_same(&token.hash()));
        assert_eq!(token.reveal().len(), 3 + 12 + 1 + 43);
        let other = Token::create().unwrap();
        assert_ne!(other.reveal(), token.reveal());
        assert!(!other.hash().is_same(&token.hash()));
        assert!(!token.hash().is_same(&TokenHash::NOBODYS));
    }

    #[test]
    fn what_has_another_form_is_no_token() {
        let token = Token::create().unwrap();
        let good = token.reveal();
        for bad in [
            "",
            "lh_",
            &good[1..],
            &good[..good.len() - 1],
            &format!("{good}A"),
            &format!("{good}="),
            &format!("{good} "),
            &good.replacen("lh_", "LH_", 1),
            &format!("lh_{}", &good[4..]),
        ] {
            assert!(Token::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn neither_a_token_nor_its_hash_is_shown_for_debugging() {
        let token = Token::create().unwrap();
        let secret = &token.reveal()[16..];
        let shown = format!("{token:?} {:?}", token.hash());
        assert!(!shown.contains(secret), "{shown}");
        assert!(!shown.contains(&token.hash().to_hex()), "{shown}");
    }

    #[test]
    fn a_hash_is_64_digits() {
        let hash = Token::create().unwrap().hash();
        assert!(TokenHash::parse(&hash.to_hex()).unwrap().is_same(&hash));
        assert!(TokenHash::parse(&hash.to_hex()[1..]).is_none());
        assert!(TokenHash::parse(&hash.to_hex().to_uppercase()).is_none());
    }

    #[test]
    fn tokens_are_taken_out_of_texts() {
        let token = Token::create().unwrap();
        let text = format!(
            "unknown field `{}`, and lh_ and {}",
            token.reveal(),
            token.reveal()
        );
        assert_eq!(
            without_tokens(&text),
            "unknown field `lh_…`, and lh_ and lh_…"
        );
    }
}
