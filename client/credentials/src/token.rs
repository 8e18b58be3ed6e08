//! A token: text that is as good as whom it stands for. Never shown.

use std::{fmt, path::PathBuf};

use http::HeaderValue;

use crate::{Names, error::CredentialsError, file::read_private};

const BYTES_MAX: usize = 4_096;

/// Where a token is.
#[derive(Clone, Debug)]
pub(crate) struct Token(Source);

#[derive(Clone)]
enum Source {
    File(PathBuf),
    Text(String),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(..)"),
        }
    }
}

impl Token {
    pub(crate) fn in_file(path: PathBuf) -> Self {
        Self(Source::File(path))
    }

    pub(crate) fn of(text: String) -> Self {
        Self(Source::Text(text))
    }

    /// Where it is from, for people: a clause, or nothing.
    pub(crate) fn whence(&self, names: &Names) -> String {
        match &self.0 {
            Source::File(path) => format!(" of {} {}", names.token_file, path.display()),
            Source::Text(_) => String::new(),
        }
    }

    /// Reads it, for `authorization`.
    pub(crate) fn header(&self, names: &Names) -> Result<HeaderValue, CredentialsError> {
        match &self.0 {
            Source::Text(text) => {
                bearer(text.as_bytes()).ok_or(CredentialsError::NoToken { name: names.token })
            }
            Source::File(path) => {
                let name = names.token_file;
                let bytes = read_private(path).map_err(|what| what.of(name, path))?;
                bearer(&bytes).ok_or_else(|| CredentialsError::Unusable {
                    name,
                    path: path.clone(),
                    what: "holds no token: it must be one line of visible characters, as `leasehold token \
                           create` prints it"
                        .to_owned(),
                })
            }
        }
    }
}

fn bearer(text: &[u8]) -> Option<HeaderValue> {
    let text = text.trim_ascii();
    let is_token = (1..=BYTES_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_graphic);
    if !is_token {
        return None;
    }
    let mut value = HeaderValue::from_bytes(&[b"Bearer ".as_slice(), text].concat()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_token_is_one_line_and_is_never_shown() {
        let value = bearer(b" lh_0123_abc\n").unwrap();
        assert_eq!(value, "Bearer lh_0123_abc");
        assert!(value.is_sensitive());
        assert!(!format!("{value:?}").contains("lh_"));
        let token = Token::of("lh_0123_abc".to_owned());
        assert!(!format!("{token:?}").contains("lh_"));
        for none in [
            b"".as_slice(),
            b" \n",
            b"two tokens",
            b"two\nlines",
            "h\u{e9}".as_bytes(),
            &[b'x'; BYTES_MAX + 1],
        ] {
            assert_eq!(bearer(none), None);
        }
    }
}
