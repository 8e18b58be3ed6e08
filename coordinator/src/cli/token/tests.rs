#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: TokenCommand,
}

/// Runs `leasehold token` with the file of a folder; gives what is printed, or the error.
fn run(dir: &Path, line: &str) -> Result<Answer, String> {
    let file = dir.join("secrets/identities.toml");
    let words = ["token"].into_iter().chain(line.split_whitespace());
    let mut words: Vec<&str> = words.collect();
    words.extend(["--identities", file.to_str().unwrap()]);
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    line.command.run().map_err(|error| error.to_string())
}

fn text(dir: &Path) -> String {
    fs::read_to_string(dir.join("secrets/identities.toml")).unwrap()
}

fn known(dir: &Path, token: &str) -> Option<String> {
    let path = dir.join("secrets/identities.toml");
    let now = i64::try_from(wall_unix_us()).unwrap();
    let identities = Identities::read(&path).unwrap();
    let found = identities.by_token(&Token::parse(token).unwrap(), now);
    found.ok().map(|(identity, _)| identity.name.to_string())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_token_is_printed_and_only_its_hash_is_kept_in_a_file_of_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let token = run(
        dir.path(),
        "create --name edge --role gateway --keys acme/** --keys login/*",
    );
    let token = token.unwrap().text;
    assert_eq!(known(dir.path(), &token).as_deref(), Some("edge"));
    assert!(!text(dir.path()).contains(&token));
    assert!(!text(dir.path()).contains(&token[16..]));
    assert_eq!(mode(&dir.path().join("secrets/identities.toml")), 0o600);
    assert_eq!(mode(&dir.path().join("secrets")), 0o700);
}

#[test]
fn an_identity_has_as_many_tokens_as_it_is_given_and_the_rest_of_the_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secrets/identities.toml");
    let first = run(dir.path(), "create --name ops --role admin")
        .unwrap()
        .text;
    fs::write(&path, format!("# who may come in\n{}", text(dir.path()))).unwrap();
    let second = run(dir.path(), "create --name ops --expires 90d")
        .unwrap()
        .text;
    let third = run(dir.path(), "create --name eye --role viewer")
        .unwrap()
        .text;
    for (token, name) in [(&first, "ops"), (&second, "ops"), (&third, "eye")] {
        assert_eq!(known(dir.path(), token).as_deref(), Some(name));
    }
    assert!(text(dir.path()).starts_with("# who may come in\n"));
    run(dir.path(), &format!("revoke {}", &first[3..15])).unwrap();
    assert_eq!(known(dir.path(), &first), None);
    assert_eq!(known(dir.path(), &second).as_deref(), Some("ops"));
    let listed = run(dir.path(), "list").unwrap().text;
    assert!(
        listed.contains(&second[3..15]) && listed.contains(&third[3..15]),
        "{listed}"
    );
    assert!(!listed.contains(&first[3..15]), "{listed}");
}

#[test]
fn a_token_goes_to_a_new_file_of_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("ops.token");
    let line = format!("create --name ops --role admin --out {}", out.display());
    let said = run(dir.path(), &line).unwrap().text;
    let token = fs::read_to_string(&out).unwrap();
    assert_eq!(known(dir.path(), token.trim()).as_deref(), Some("ops"));
    assert!(!said.contains(token.trim()), "{said}");
    assert_eq!(mode(&out), 0o600);
    let before = text(dir.path());
    assert!(
        run(dir.path(), &line)
            .unwrap_err()
            .contains("is there already")
    );
    assert_eq!(text(dir.path()), before, "nobody would have that token");
}

#[test]
fn what_makes_no_sense_changes_nothing_and_is_said() {
    let dir = tempfile::tempdir().unwrap();
    run(
        dir.path(),
        "create --name edge --role gateway --keys acme/*",
    )
    .unwrap();
    let before = text(dir.path());
    for (line, says) in [
        ("create --name new", "--role is needed"),
        ("create --name new --role gateway", "--keys is needed"),
        (
            "create --name new --role viewer --keys a",
            "only a gateway has them",
        ),
        (
            "create --name new --role gateway --keys a//b",
            "keys (a//b)",
        ),
        ("create --name ne/w --role viewer", "letters, digits"),
        ("create --name edge --role viewer", "is in"),
        (
            "create --name edge --keys other/*",
            "leave out --role and --keys",
        ),
        (
            "create --name edge --expires 90",
            "--expires 90 must be a time",
        ),
        (
            "create --name edge --expires 2020-01-01T00:00:00Z",
            "is over",
        ),
        ("revoke 0123456789ab", "no token 0123456789ab"),
        ("revoke edge", "that is no token"),
        ("revoke edge", "that is no token"),
    ] {
        let error = run(dir.path(), line).unwrap_err();
        assert!(error.contains(says), "{line}: {error}");
        assert_eq!(text(dir.path()), before, "{line}");
    }
}

#[test]
fn whoever_comes_at_the_same_time_waits_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = std::thread::scope(|scope| {
        let all = (0..8).map(|number| {
            let line = format!("create --name eye{number} --role viewer");
            let dir = dir.path();
            scope.spawn(move || run(dir, &line).unwrap().text)
        });
        let all: Vec<_> = all.collect();
        all.into_iter()
            .map(|made| made.join().unwrap())
            .collect::<Vec<_>>()
    });
    for token in tokens {
        assert!(known(dir.path(), &token).is_some());
    }
}

#[test]
fn a_link_stays_one_and_a_whole_token_is_revoked_without_being_said() {
    let dir = tempfile::tempdir().unwrap();
    let token = run(dir.path(), "create --name ops --role admin")
        .unwrap()
        .text;
    let path = dir.path().join("secrets/identities.toml");
    let real = dir.path().join("real.toml");
    fs::rename(&path, &real).unwrap();
    std::os::unix::fs::symlink(&real, &path).unwrap();
    let other = run(dir.path(), "create --name ops").unwrap().text;
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    assert!(fs::read_to_string(&real).unwrap().contains(&other[3..15]));
    let said = run(dir.path(), &format!("revoke {token}")).unwrap().text;
    assert!(!said.contains(&token[16..]), "{said}");
    assert_eq!(known(dir.path(), &token), None);
    let said = run(dir.path(), &format!("revoke {token}")).unwrap_err();
    assert!(
        said.contains(&token[3..15]) && !said.contains(&token[16..]),
        "{said}"
    );
}
