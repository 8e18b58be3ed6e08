//! Reads files into checked rules. Every field is either understood or an error that says
//! where it stands and what to do; what is understood but has no effect is a note.
//!
//! Does not know keys' accounts, budgets or coordinators. Past 600 lines: one function for
//! each thing in a file, with all that can be wrong with it.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
};

use leasehold_key::{Key, Pattern, SEGMENTS_MAX};

use super::{
    Place, Plan, Problem, Problems, Rules,
    circle::in_a_circle,
    descriptor::{Descriptor, Domain, Limit, Rate, Unit},
    segment::{Segment, Value, Wildcard},
    siblings::Siblings,
    wording::{can_be_shown, is_decimal, listed, named, near, no_key, shown, units},
    yaml::{self, Content, Field, Node},
};

/// The fields of each mapping, and what it is called.
const ROOT: (&str, &[&str]) = ("a file", &["domain", "descriptors"]);
const DESCRIPTOR: (&str, &[&str]) = (
    "a descriptor",
    &[
        "key",
        "value",
        "rate_limit",
        "descriptors",
        "shadow_mode",
        "share_threshold",
    ],
);
const RATE_LIMIT: (&str, &[&str]) = (
    "a rate_limit",
    &["unit", "requests_per_unit", "unlimited", "name", "replaces"],
);
const REPLACES: (&str, &[&str]) = ("an entry of replaces", &["name"]);

/// The most names that are compared with one that nothing has.
const HINTED_MAX: usize = 200;

/// The rules of one or more files.
#[derive(Debug)]
pub struct Config {
    domains: Vec<Domain>,
    notes: Vec<Problem>,
}

impl Config {
    /// Reads files, one domain each.
    ///
    /// # Errors
    /// Everything that is wrong in them, with file, line and column: what is no YAML, what
    /// the format does not have, and what it has but Leasehold does not (`quota_mode`,
    /// `metadata`, `detailed_metric`, `value_to_metric`, a `*` in a key), because a rule
    /// that is followed in part is not the rule that was written.
    pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Self, Problems> {
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let name = path.as_ref().display().to_string();
            match std::fs::read_to_string(path) {
                Ok(text) => files.push((name, text)),
                Err(error) => {
                    return Err(Problems(vec![Problem {
                        file: name,
                        at: Place { line: 1, column: 1 },
                        text: format!("cannot be read: {error}"),
                    }]));
                }
            }
        }
        let files = files.iter().map(|(name, text)| (&**name, &**text));
        Self::parse(files)
    }

    /// Reads texts, each with the name that errors call it by.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Problems> {
        let mut config = Self {
            domains: Vec::new(),
            notes: Vec::new(),
        };
        let mut problems = Vec::new();
        let mut seen: HashMap<String, (Arc<str>, Place)> = HashMap::new();
        for (name, text) in files {
            let mut reader = Reader::new(name);
            let domain = match yaml::parse(text) {
                Ok(root) => reader.domain(root),
                Err(error) => {
                    reader.problem(error.at, error.why);
                    None
                }
            };
            if let Some(domain) = domain {
                if let Some((file, at)) = seen.get(&domain.name) {
                    let text = format!(
                        "domain `{}` is in {file}:{} too: put all of its descriptors into one file",
                        domain.name, at.line
                    );
                    reader.problem(domain.at, text);
                } else {
                    seen.insert(domain.name.clone(), (Arc::clone(&domain.file), domain.at));
                }
                config.domains.push(domain);
            }
            problems.append(&mut in_order(reader.problems));
            config.notes.append(&mut in_order(reader.notes));
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(Problems(problems))
        }
    }

    /// What has no effect, and is likely not meant so.
    #[must_use]
    pub fn notes(&self) -> &[Problem] {
        &self.notes
    }

    /// The domains, in the order of the files.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(|domain| domain.name.as_str())
    }

    /// What decides under which keys a request is counted.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules::new(&self.domains)
    }

    /// What a coordinator needs for it.
    #[must_use]
    pub fn plan(&self) -> Plan {
        Plan::new(&self.domains)
    }
}

fn in_order(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| problem.at);
    problems
}

/// Reads one file.
struct Reader {
    file: Arc<str>,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
}

/// Where in the rules a list of descriptors is.
#[derive(Clone, Copy)]
struct Above<'a> {
    /// The pattern of keys so far, in canonical encoding.
    pattern: &'a str,
    /// Segments so far.
    segments: usize,
}

impl Reader {
    fn new(file: &str) -> Self {
        Self {
            file: file.into(),
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn problem(&mut self, at: Place, text: impl Into<String>) {
        let file = self.file.to_string();
        let text = text.into();
        self.problems.push(Problem { file, at, text });
    }

    fn note(&mut self, at: Place, text: impl Into<String>) {
        let file = self.file.to_string();
        let text = text.into();
        self.notes.push(Problem { file, at, text });
    }

    fn domain(&mut self, root: Node) -> Option<Domain> {
        let at = root.at;
        let mut domain = None;
        let mut list = None;
        for field in self.fields(root, ROOT)? {
            match field.name.as_str() {
                "domain" => domain = Some((field.value.at, self.text(field).unwrap_or_default())),
                "descriptors" => list = Some(field),
                _ => self.unknown(&field, ROOT),
            }
        }
        let Some((at, name)) = domain.filter(|(_, name)| !name.is_empty()) else {
            self.problem(
                at,
                "`domain` is missing: it is the first segment of every key",
            );
            return None;
        };
        let pattern = match Key::new([&name]) {
            Ok(key) => key,
            Err(error) => {
                self.problem(at, format!("`domain` ({name}) can begin no key: {error}"));
                return None;
            }
        };
        let above = Above {
            pattern: pattern.as_str(),
            segments: 1,
        };
        let descriptors = list.map_or_else(Vec::new, |list| self.descriptors(list, above));
        self.check_replaces(&descriptors);
        self.check_circles(&descriptors);
        Some(Domain {
            name,
            file: Arc::clone(&self.file),
            at,
            descriptors,
        })
    }

    fn descriptors(&mut self, list: Field, above: Above<'_>) -> Vec<Descriptor> {
        let mut siblings = Siblings::default();
        let mut descriptors = Vec::new();
        for item in self.list(list) {
            let at = item.at;
            let Some(descriptor) = self.descriptor(item, above) else {
                continue;
            };
            if let Some(first) = siblings.same(&descriptor, at) {
                let text = format!(
                    "{} is in line {} too: leave one of them out",
                    named(&descriptor),
                    first.line
                );
                self.problem(at, text);
            } else {
                descriptors.push((at, descriptor));
            }
        }
        // The first wildcard that matches is followed, and what has no value comes last: what
        // comes after something that matches as much is never reached.
        let mut kept = Vec::with_capacity(descriptors.len());
        for (at, descriptor) in descriptors {
            match siblings.before(&descriptor, at) {
                Some((wildcard, place)) => {
                    let text = format!(
                        "{} never matches: `{wildcard}` in line {} takes all of its values; leave it out, or put it first",
                        named(&descriptor),
                        place.line
                    );
                    self.note(at, text);
                }
                None => kept.push(descriptor),
            }
        }
        kept
    }

    fn descriptor(&mut self, node: Node, above: Above<'_>) -> Option<Descriptor> {
        let at = node.at;
        let fields = self.fields(node, DESCRIPTOR)?;
        let mut key = None;
        let mut value = None;
        let mut rate_limit = None;
        let mut list = None;
        let mut shadow = None;
        let mut shared = None;
        let before = self.problems.len();
        for field in fields {
            match field.name.as_str() {
                "key" => key = Some((field.value.at, self.text(field).unwrap_or_default())),
                "value" => value = self.text(field),
                "rate_limit" => rate_limit = Some(field),
                "descriptors" => list = Some(field),
                "shadow_mode" => shadow = self.switch(&field).map(|on| (field.at, on)),
                "share_threshold" => shared = self.switch(&field).map(|on| (field.at, on)),
                _ => self.unknown(&field, DESCRIPTOR),
            }
        }
        let (key_at, key) = key.filter(|(_, key)| !key.is_empty()).or_else(|| {
            if self.problems.len() == before {
                self.problem(at, "`key` is missing: a descriptor is found by it");
            }
            None
        })?;
        if key.contains('*') {
            let text = format!(
                "`key` ({key}) is not supported: a `*` stands for a part of a value, not of a key"
            );
            self.problem(key_at, text);
            return None;
        }
        let value = match value {
            None => Value::Any,
            Some(text) if text.is_empty() => Value::Any,
            Some(text) if text.contains('*') => Value::Wildcard(Wildcard::parse(&text)),
            Some(text) => Value::Exact(text),
        };
        let shares = shared.is_some_and(|(_, on)| on);
        if let Some((at, true)) = shared
            && !matches!(value, Value::Wildcard(_))
        {
            self.problem(
                at,
                "`share_threshold` needs a `value` with a `*`: it is for the values that match one wildcard",
            );
        }
        let segment = Segment::new(&key, &value, shares);
        let segments = above.segments + 1;
        if segments > SEGMENTS_MAX {
            let most = SEGMENTS_MAX - 1;
            self.problem(
                at,
                format!("descriptors are nested {most} deep at most: a key has {SEGMENTS_MAX} segments, and the first is the domain"),
            );
            return None;
        }
        let pattern = match segment.pattern() {
            Ok(pattern) => format!("{}/{pattern}", above.pattern),
            Err(error) => {
                self.problem(at, no_key(&error));
                return None;
            }
        };
        let limit = rate_limit.and_then(|field| {
            let on = shadow.is_some_and(|(_, on)| on);
            self.limit(field, on, &pattern)
        });
        if let (Some((at, true)), None) = (shadow, &limit) {
            self.note(
                at,
                "`shadow_mode` has no effect without a `rate_limit` beside it: descriptors below do not inherit it",
            );
        }
        let below = Above {
            pattern: &pattern,
            segments,
        };
        let descriptors = list.map_or_else(Vec::new, |list| self.descriptors(list, below));
        Some(Descriptor {
            key,
            value,
            segment,
            limit,
            descriptors,
        })
    }

    fn limit(&mut self, field: Field, shadow: bool, pattern: &str) -> Option<Limit> {
        let at = field.at;
        if matches!(field.value.content, Content::Null) {
            self.problem(
                at,
                "`rate_limit` is empty: give it `unit` and `requests_per_unit`, or leave it out",
            );
            return None;
        }
        let mut unit = None;
        let mut requests = None;
        let mut unlimited = false;
        let mut name = None;
        let mut replaces = Vec::new();
        let before = self.problems.len();
        for field in self.fields(field.value, RATE_LIMIT)? {
            match field.name.as_str() {
                "unit" => unit = Some(field.at).zip(self.unit(field)),
                "requests_per_unit" => requests = Some(field.at).zip(self.requests(&field)),
                "unlimited" => unlimited = self.switch(&field).unwrap_or_default(),
                "name" => {
                    let at = field.at;
                    name = self.text(field).filter(|name| !name.is_empty());
                    if name.as_deref().is_some_and(|name| !can_be_shown(name)) {
                        self.note(
                            at,
                            "`name` is not shown to callers, who see 1 to 64 visible ASCII characters; `replaces` finds it",
                        );
                    }
                }
                "replaces" => replaces = self.replaces(field),
                _ => self.unknown(&field, RATE_LIMIT),
            }
        }
        // What is missing may be what is misspelt.
        if self.problems.len() > before {
            return None;
        }
        let rate = match (unlimited, unit, requests) {
            (true, None, None) => Rate::Unlimited,
            (true, Some((at, _)), _) | (true, None, Some((at, _))) => {
                self.problem(
                    at,
                    "a rate_limit is `unlimited` or has `unit` and `requests_per_unit`: leave one or the other out",
                );
                return None;
            }
            (false, Some((_, unit)), Some((_, requests))) => Rate::Per { requests, unit },
            (false, None, _) => {
                self.problem(at, format!("`unit` is missing: it is {}", units()));
                return None;
            }
            (false, Some(_), None) => {
                self.problem(
                    at,
                    "`requests_per_unit` is missing: write 0 if everything is to be refused",
                );
                return None;
            }
        };
        for (at, replaced) in &replaces {
            if Some(replaced) == name.as_ref() {
                self.problem(
                    *at,
                    format!("`replaces` names its own rate_limit (`{replaced}`): leave it out"),
                );
            }
        }
        let pattern = match Pattern::parse(pattern) {
            Ok(pattern) => pattern,
            Err(error) => {
                self.problem(at, no_key(&error));
                return None;
            }
        };
        Some(Limit {
            at,
            rate,
            shadow,
            name,
            replaces,
            pattern,
        })
    }

    fn unit(&mut self, field: Field) -> Option<Unit> {
        let at = field.value.at;
        let text = self.text(field)?;
        let lower = text.to_ascii_lowercase();
        let found = Unit::ALL.into_iter().find(|unit| unit.name() == lower);
        if found.is_none() {
            let names = Unit::ALL.map(Unit::name);
            let hint = near(&lower, &names).map_or_else(
                || format!("it is {}", units()),
                |name| format!("did you mean `{name}`?"),
            );
            self.problem(at, format!("`unit` ({text}) is unknown: {hint}"));
        }
        found
    }

    fn requests(&mut self, field: &Field) -> Option<u32> {
        if let Content::Scalar(scalar) = &field.value.content
            && let Some(number) = scalar.number.and_then(|number| u32::try_from(number).ok())
        {
            return Some(number);
        }
        // Plain digits are a number, so that these are quoted.
        let is_quoted = matches!(
            &field.value.content,
            Content::Scalar(scalar) if scalar.number.is_none() && is_decimal(&scalar.text)
        );
        let text = if is_quoted {
            format!(
                "`requests_per_unit`{} is a text because of its quotes: write the number \
                 without them",
                shown(&field.value)
            )
        } else {
            format!(
                "`requests_per_unit`{} must be a whole number from 0 to {}",
                shown(&field.value),
                u32::MAX
            )
        };
        self.problem(field.value.at, text);
        None
    }

    fn replaces(&mut self, list: Field) -> Vec<(Place, String)> {
        let mut names = Vec::new();
        for item in self.list(list) {
            let at = item.at;
            let Some(fields) = self.fields(item, REPLACES) else {
                continue;
            };
            let mut name = None;
            for field in fields {
                match field.name.as_str() {
                    "name" => name = self.text(field),
                    _ => self.unknown(&field, REPLACES),
                }
            }
            match name.filter(|name| !name.is_empty()) {
                Some(name) => names.push((at, name)),
                None => self.problem(
                    at,
                    "an entry of `replaces` has no `name`: it is the `name` of the rate_limit to replace",
                ),
            }
        }
        names
    }

    /// Names that nothing has are not an error: what they name may come later.
    fn check_replaces(&mut self, descriptors: &[Descriptor]) {
        let mut names = HashSet::new();
        each_limit(descriptors, &mut |limit| {
            names.extend(limit.name.as_deref())
        });
        let mut missing = Vec::new();
        each_limit(descriptors, &mut |limit| {
            for (at, name) in &limit.replaces {
                if !names.contains(name.as_str()) {
                    missing.push((*at, name.clone()));
                }
            }
        });
        let mut names: Vec<&str> = names.into_iter().collect();
        // A hint is for a slip in a file that people read.
        names.sort_unstable();
        names.truncate(HINTED_MAX);
        for (at, name) in missing {
            let hint = near(&name, &names).map_or_else(
                || "no rate_limit of the domain has this `name`".to_owned(),
                |near| {
                    format!("no rate_limit of the domain has this `name`; did you mean `{near}`?")
                },
            );
            self.note(at, format!("`replaces` `{name}` has no effect: {hint}"));
        }
    }

    /// Rules that replace each other in a circle would all be left out, and a request that
    /// all of them match would be charged to none.
    fn check_circles(&mut self, descriptors: &[Descriptor]) {
        let mut edges: Vec<(&str, &str, Place)> = Vec::new();
        each_limit(descriptors, &mut |limit| {
            if let Some(name) = &limit.name {
                let replaced = limit.replaces.iter();
                edges.extend(replaced.map(|(at, other)| (name.as_str(), other.as_str(), *at)));
            }
        });
        if let Some((name, other, at)) = in_a_circle(&edges) {
            let text = format!(
                "`{name}` replaces `{other}`, and is replaced by it in a circle: a request that \
                 matches all of them would be charged to none; take one `replaces` away"
            );
            self.problem(*at, text);
        }
    }

    /// The entries of a mapping.
    fn fields(&mut self, node: Node, (what, names): (&str, &[&str])) -> Option<Vec<Field>> {
        match node.content {
            Content::Map(fields) => Some(fields),
            _ => {
                let text = format!("{what} must be a mapping of {}", listed(names));
                self.problem(node.at, text);
                None
            }
        }
    }

    /// The items of a list; nothing is an empty one.
    fn list(&mut self, field: Field) -> Vec<Node> {
        match field.value.content {
            Content::List(items) => items,
            Content::Null => Vec::new(),
            Content::Scalar(_) | Content::Map(_) => {
                let text = format!("`{}` must be a list: begin each item with `- `", field.name);
                self.problem(field.value.at, text);
                Vec::new()
            }
        }
    }

    /// A text; nothing is an empty one.
    fn text(&mut self, field: Field) -> Option<String> {
        match field.value.content {
            Content::Scalar(scalar) => Some(scalar.text),
            Content::Null => Some(String::new()),
            Content::List(_) | Content::Map(_) => {
                let text = format!("`{}` must be a text", field.name);
                self.problem(field.value.at, text);
                None
            }
        }
    }

    fn switch(&mut self, field: &Field) -> Option<bool> {
        if let Content::Scalar(scalar) = &field.value.content
            && scalar.bool.is_some()
        {
            return scalar.bool;
        }
        let text = format!(
            "`{}`{} must be true or false",
            field.name,
            shown(&field.value)
        );
        self.problem(field.value.at, text);
        None
    }

    /// A field that is not understood here: what it would do, where it belongs, or what it
    /// resembles.
    fn unknown(&mut self, field: &Field, (what, names): (&str, &[&str])) {
        let name = field.name.as_str();
        if what == DESCRIPTOR.0 && self.unsupported(field) {
            return;
        }
        let hint = if let Some(near) = near(name, names) {
            format!("did you mean `{near}`?")
        } else if let Some((other, _)) = [ROOT, DESCRIPTOR, RATE_LIMIT]
            .into_iter()
            .find(|(_, names)| names.contains(&name))
        {
            format!("it belongs to {other}")
        } else {
            format!("{what} has {}", listed(names))
        };
        self.problem(field.at, format!("`{name}` is unknown here: {hint}"));
    }

    /// What the format has and Leasehold has not.
    fn unsupported(&mut self, field: &Field) -> bool {
        let advice = match field.name.as_str() {
            "quota_mode" => {
                "here every descriptor of a request must have room; leave it out, or write `shadow_mode: true` to count \
                 without refusing"
            }
            "metadata" => "no answer here carries it; leave it out",
            "detailed_metric" | "value_to_metric" => {
                "metrics here never name values; leave it out: every value has an account of its own, and \
                 `leasehold account list` shows them"
            }
            _ => return false,
        };
        let off = field.name != "metadata" && self.switch(field) == Some(false);
        if !off {
            let text = format!("`{}` is not supported: {advice}", field.name);
            self.problem(field.at, text);
        }
        true
    }
}

fn each_limit<'a>(descriptors: &'a [Descriptor], take: &mut impl FnMut(&'a Limit)) {
    for descriptor in descriptors {
        if let Some(limit) = &descriptor.limit {
            take(limit);
        }
        each_limit(&descriptor.descriptors, take);
    }
}
