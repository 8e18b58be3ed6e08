#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use leasehold_key::Key;

use super::*;

fn parse(text: &str) -> Result<Identities, RegisterError> {
    Identities::parse(Path::new("identities.toml"), text)
}

fn refused(text: &str) -> String {
    match parse(text) {
        Ok(_) => panic!("taken: {text}"),
        Err(error) => error.to_string(),
    }
}

fn entry(token: &Token, more: &str) -> String {
    format!(
        "[[identity.token]]\nid = \"{}\"\nsha256 = \"{}\"\n{more}\n",
        token.id().as_str(),
        token.hash().to_hex()
    )
}

#[test]
fn a_token_names_its_identity_until_it_expires_and_no_other_token_does() {
    let [first, second, other] = [(); 3].map(|()| Token::create().unwrap());
    let text = format!(
        "[[identity]]\nname = \"edge-eu\"\nrole = \"gateway\"\nkeys = [\"acme/*\"]\n{}{}\
         [[identity]]\nname = \"ada\"\nrole = \"admin\"\n",
        entry(&first, "expires = 1970-01-01T00:00:10Z"),
        entry(&second, ""),
    );
    let identities = parse(&text).unwrap();
    assert_eq!(identities.len(), 2);
    let (identity, proof) = identities.by_token(&first, 9_999_999).unwrap();
    assert_eq!((&*identity.name, identity.role), ("edge-eu", Role::Gateway));
    assert!(identity.keys.cover(&Key::parse("acme/orders").unwrap()));
    assert_eq!(identities.expires_unix_us(&proof), Some(10_000_000));
    let at_its_end = identities.by_token(&first, 10_000_000);
    assert_eq!(at_its_end.unwrap_err(), Unknown::Expired);
    assert!(identities.confirm("edge-eu", &proof, 9_999_999).is_some());
    assert!(identities.confirm("edge-eu", &proof, 10_000_000).is_none());
    assert!(identities.confirm("ada", &proof, 0).is_none());
    assert!(identities.by_token(&second, i64::MAX).is_ok());
    assert_eq!(identities.by_token(&other, 0).unwrap_err(), Unknown::Token);

    // The id of one with the secret of another.
    let forged = format!(
        "lh_{}_{}",
        first.id().as_str(),
        other.reveal().rsplit_once('_').unwrap().1
    );
    if let Some(forged) = Token::parse(&forged) {
        assert_eq!(identities.by_token(&forged, 0).unwrap_err(), Unknown::Token);
    }
}

#[test]
fn a_certificate_is_an_identity_only_where_the_file_says_so() {
    let identities = parse(
        "[[identity]]\nname = \"ada\"\nrole = \"admin\"\ncertificate = true\n\
         [[identity]]\nname = \"bob\"\nrole = \"admin\"\n",
    )
    .unwrap();
    let (ada, proof) = identities.by_certificate("ada").unwrap();
    assert_eq!(&*ada.name, "ada");
    assert!(identities.confirm("ada", &proof, 0).is_some());
    for name in ["bob", "eve", "", "ADA"] {
        let unknown = identities.by_certificate(name).unwrap_err();
        assert_eq!(unknown, Unknown::Certificate, "{name}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let gateway = "[[identity]]\nname = \"a\"\nrole = \"gateway\"\n";
    let cases = [
        (
            "[[identity]]\nname = \"a\"\nrole = \"king\"\n".to_owned(),
            "line 3: unknown variant `king`",
        ),
        (
            "\n[[identity]]\nname = \"a b\"\nrole = \"admin\"\n".to_owned(),
            "line 3: name (a b) must have",
        ),
        (
            "[[identity]]\nname = \"a\"\nrole = \"admin\"\nrank = 1\n".to_owned(),
            "line 4: unknown field `rank`",
        ),
        ("identity = 1\n".to_owned(), "line 1: invalid type"),
        ("[[identity]]\nname = \"a\n".to_owned(), "line 2: "),
        (gateway.to_owned(), "line 3: keys: a gateway needs patterns"),
        (
            format!("{gateway}keys = [\"acme/*\",\n \"b/**/c\"]\n"),
            "line 5: keys (b/**/c): ",
        ),
        (
            "[[identity]]\nname = \"a\"\nrole = \"viewer\"\nkeys = [\"x\"]\n".to_owned(),
            "line 3: keys: only a gateway has them",
        ),
        (
            "[[identity]]\nname = \"a\"\nrole = \"viewer\"\n[[identity]]\nname = \"a\"\nrole = \"admin\"\n"
                .to_owned(),
            "line 5: name (a) is there already",
        ),
        (
            "[[identity]]\nname = \"a\"\nrole = \"viewer\"\n[[identity.token]]\nid = \"0\"\nsha256 = \"\"\n"
                .to_owned(),
            "line 5: id must be",
        ),
        (
            "[[identity]]\nname = \"a\"\nrole = \"viewer\"\n[[identity.token]]\nid = \"000000000000\"\nsha256 = \"\"\n"
                .to_owned(),
            "line 6: sha256 must be",
        ),
    ];
    for (text, expected) in cases {
        let said = refused(&text);
        assert!(
            said.starts_with("identities.toml, ") && said.contains(expected),
            "{said}\n  is not about: {expected}"
        );
    }
}

#[test]
fn an_expiry_without_an_offset_and_a_token_that_is_there_twice_are_refused() {
    let token = Token::create().unwrap();
    let head = "[[identity]]\nname = \"a\"\nrole = \"viewer\"\n";
    let local = format!("{head}{}", entry(&token, "expires = 2027-01-31T00:00:00"));
    assert!(refused(&local).contains("line 7: expires must be a moment"));
    let twice = format!("{head}{}{}", entry(&token, ""), entry(&token, ""));
    assert!(refused(&twice).contains("is there already"));
}

#[test]
fn a_token_that_was_written_into_the_file_by_mistake_is_not_repeated() {
    let token = Token::create().unwrap();
    for text in [
        format!("{} = 1\n", token.reveal()),
        format!(
            "[[identity]]\nname = \"{} !\"\nrole = \"admin\"\n",
            token.reveal()
        ),
        format!(
            "[[identity]]\nname = \"a\"\nrole = \"{}\"\n",
            token.reveal()
        ),
        format!("identity = \"{}\"\n", token.reveal()),
    ] {
        let said = refused(&text);
        assert!(!said.contains(&token.reveal()[16..]), "{said}");
    }
}

#[test]
fn who_may_use_every_key_is_named() {
    let identities = parse(
        "[[identity]]\nname = \"all\"\nrole = \"gateway\"\nkeys = [\"a\", \"**\"]\n\
         [[identity]]\nname = \"some\"\nrole = \"gateway\"\nkeys = [\"*\", \"acme/**\"]\n",
    )
    .unwrap();
    assert_eq!(identities.unbounded().collect::<Vec<_>>(), ["all"]);
}

#[test]
fn a_file_that_everybody_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("identities.toml");
    std::fs::write(&path, "").unwrap();
    let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
    mode(0o646).unwrap();
    assert!(matches!(
        Identities::read(&path),
        Err(RegisterError::Writable { mode: 0o646, .. })
    ));
    mode(0o644).unwrap();
    assert_eq!(Identities::read(&path).unwrap().len(), 0);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        Identities::read(&path),
        Err(RegisterError::Unreadable { .. })
    ));
}
