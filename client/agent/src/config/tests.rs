#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;

const KEY: &str = "[check]\nkey = \"edge/{header:x-key}\"\n";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("agent.toml"), &Texts::of(text), false)
}

#[test]
fn the_example_says_what_is_the_default_anyway_where_it_says_a_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agent.toml");
    let example = Config::load(&path, false).unwrap();
    let minimal = "[check]\nkey = \"edge/{header:x-quota-key}\"\n[rls]\n";
    let minimal = parse(minimal).unwrap();
    assert_eq!(example.fixed, minimal.fixed);
    assert_eq!(example.rules.descriptors_max, minimal.rules.descriptors_max);
    assert_eq!(
        format!("{:?}", example.rules.rls),
        format!("{:?}", minimal.rules.rls)
    );
    let (shown, bare) = (&example.rules.checks[""], &minimal.rules.checks[""]);
    let with_headers = Check {
        cost_header: shown.cost_header.clone(),
        request_id_header: shown.request_id_header.clone(),
        ..bare.clone()
    };
    assert_eq!(*shown, with_headers);
    assert!(shown.cost_header.is_some() && shown.request_id_header.is_some());
}

#[test]
fn what_is_commented_out_in_the_example_could_be_taken_in() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/agent.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let all = [
        "holder",
        "ca",
        "certificate",
        "key",
        "token_file",
        "emergency_units",
        "unix",
        "unix_group",
        "[listen.tls]",
        "certificate",
        "key",
        "client_ca",
        "lane_header",
        "[checks.login]",
        "key",
        "domains",
        "request_id_header",
    ];
    let taken_in = |line: &str| {
        let bare = line.strip_prefix("# ")?;
        let begins = |field: &str| bare == field || bare.starts_with(&format!("{field} = "));
        all.iter()
            .any(|field| begins(field))
            .then(|| bare.to_owned())
    };
    let mut found = 0;
    let lines = text.lines().map(|line| match taken_in(line) {
        Some(bare) => {
            found += 1;
            bare
        }
        None => line.to_owned(),
    });
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    assert_eq!(found, all.len());
    let text = text.replace(
        "before_contact = \"closed\"",
        "before_contact = \"emergency\"",
    );
    let config = parse(&text).unwrap();
    assert_eq!(config.rules.checks.len(), 2);
    assert!(config.fixed.unix.is_some());
    let calling = &config.fixed.calling;
    assert!(calling.ca.is_some() && calling.identity.is_some() && calling.token_file.is_some());
}

#[test]
fn credentials_are_files_as_seen_from_the_configuration_and_need_a_restart() {
    let text = format!(
        "[coordinator]\nendpoints = [\"https://node1:7070\"]\nca = \"ca.pem\"\ncertificate = \"c.pem\"\nkey = \
         \"/k.pem\"\ntoken_file = \"token\"\n{KEY}"
    );
    let path = Path::new("/etc/leasehold/agent.toml");
    let config = Config::parse(path, &Texts::of(&text), false).unwrap();
    let calling = &config.fixed.calling;
    let at = |name: &str| Path::new("/etc/leasehold").join(name);
    assert_eq!(calling.ca, Some(at("ca.pem")));
    assert_eq!(
        calling.identity,
        Some((at("c.pem"), PathBuf::from("/k.pem")))
    );
    assert_eq!(calling.token_file, Some(at("token")));
    let bare = parse(KEY).unwrap();
    assert_eq!(
        bare.fixed.differences(&config.fixed),
        [
            "coordinator.endpoints",
            "coordinator.ca",
            "coordinator.certificate",
            "coordinator.token_file"
        ]
    );
}

#[test]
fn every_refusal_names_the_field_its_value_and_what_to_do() {
    let cases = [
        "",
        "[check]\n",
        "[check]\nkex = 1\n",
        "[check]\nkey = 7\n",
        "[check]\nkey = []\n",
        "[check]\nkey = \"edge/{x-key}\"\n",
        "[check]\nkey = \"edge/{header:a}{header:b}\"\n",
        "[check]\nkey = [\"a\", \"a\"]\n",
        "[check]\nkey = \"a\"\ncost_header = \"no name\"\n",
        "[check]\nkey = \"a\"\nmissing_key = \"perhaps\"\n",
        "[checks.nginx]\nkey = \"a\"\n",
        "[checks.\"a/b\"]\nkey = \"a\"\n",
        "[rls]\ndomains = []\n",
        "[rls]\ndomains = [\"..\"]\n",
        "holder = \"\"\n[rls]\n",
        "[coordinator]\nendpoints = []\n[rls]\n",
        "[coordinator]\nendpoints = [\"127.0.0.1:7070\"]\n[rls]\n",
        "[coordinator]\nendpoints = \"http://127.0.0.1:7070\"\n[rls]\n",
        "[coordinator]\nendpoints = [\"https://node1:7070\"]\n",
        "[coordinator]\nendpoints = [\"http://node1:7070\"]\ntoken_file = \"t\"\n",
        "[coordinator]\nendpoints = [\"ftp://node1\"]\n",
        "[coordinator]\ncertificate = \"c.pem\"\n",
        "[coordinator]\nkey = \"k.pem\"\n",
        "[coordinator]\nkeys_max = 0\n[rls]\n",
        "[coordinator]\nemergency_units = 3\n[rls]\n",
        "[coordinator]\nbefore_contact = \"emergency\"\nemergency_units = 0\n[rls]\n",
        "[listen]\ntcp = \"0.0.0.0:7080\"\n[rls]\n",
        "[listen]\ntcp = \"7080\"\n[rls]\n",
        "[listen]\ntcp = \"localhost:7080\"\n[rls]\n",
        "[listen]\nunix = \"agent.sock\"\n[rls]\n",
        "[listen]\nunix_group = \"nginx\"\n[rls]\n",
        "[listen]\nunix = \"/run/a.sock\"\n[listen.tls]\ncertificate = \"a.pem\"\nkey = \"k.pem\"\n[rls]\n",
        "[listen]\ntcp = \"0.0.0.0:7080\"\n[listen.tls]\ncertificate = \"a.pem\"\nkey = \"k.pem\"\n[rls]\n",
        "[limits]\nconnections_max = 0\n[rls]\n",
        "[limits]\nheader_bytes_max = 100\n[rls]\n",
        "[limits]\ndescriptors_max = 0\n[rls]\n",
        "[request_ids]\nremember_ms = 60000\n[rls]\n",
        "[request_ids]\nremembered_max = 0\n[rls]\n",
        "[log]\nfilter = \"a=b=c\"\n[rls]\n",
        "[log]\nformat = \"xml\"\n[rls]\n",
    ];
    let told: Vec<String> = cases
        .iter()
        .map(|text| match parse(text) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => format!("{}\n=> {error}\n", text.trim_end()),
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn beyond_loopback_it_listens_if_somebody_says_that_it_may() {
    let text = format!("[listen]\ntcp = \"0.0.0.0:7080\"\n{KEY}");
    assert!(parse(&text).is_err());
    let insecure = text.replace("[listen]\n", "[listen]\ninsecure = true\n");
    assert!(parse(&insecure).is_ok());
    let tls = "[listen.tls]\ncertificate = \"a.pem\"\nkey = \"k.pem\"\nclient_ca = \"ca.pem\"\n";
    assert!(parse(&format!("{text}{tls}")).is_ok());
    assert!(Config::parse(Path::new("agent.toml"), &Texts::of(&text), true).is_ok());
}

#[test]
fn without_a_word_about_it_it_listens_on_loopback_and_with_a_socket_only_there() {
    let tcp = |text: &str| parse(text).unwrap().fixed.tcp;
    assert_eq!(tcp(KEY), Some("127.0.0.1:7080".parse().unwrap()));
    let unix = format!("[listen]\nunix = \"/run/agent.sock\"\n{KEY}");
    assert_eq!(tcp(&unix), None);
}
