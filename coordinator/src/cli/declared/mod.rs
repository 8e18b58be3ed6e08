//! `leasehold apply` and `leasehold export`: policies and budgets as a file that is kept
//! under version control. Knows the API's fields; nothing of how rules are followed.

mod diff;
mod file;
mod write;

use std::{io::Read, path::PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use super::{
    Answer, CliError, Remote,
    effects::effects,
    http::{Condition, delete_if, get, put, put_if},
    text::{encoded, pattern_path},
};
use diff::{Change, Deed, Thing, changes};
use file::Declared;

/// Budgets that one request sets, in one step.
const BUDGETS_PER_REQUEST: usize = 10_000;
/// And about as many bytes; it may have 8 MiB.
const BYTES_PER_REQUEST: usize = 6 << 20;

/// Things that are tried one by one in a dry run, each of which looks at every account.
const TRIED_MAX: usize = 100;

#[derive(Debug, Args)]
pub(super) struct ApplyFlags {
    /// A file of policies and budgets in YAML or JSON, as `leasehold export` writes it; -
    /// for standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Change nothing: say what would be changed, and exit with 9 if anything would
    #[arg(long)]
    dry_run: bool,
    /// Delete the policies and budgets that the file does not have
    #[arg(long)]
    prune: bool,
}

#[derive(Debug, Args)]
pub(super) struct ExportFlags {
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ApplyFlags {
    pub(super) async fn run(&self, remote: &Remote) -> Result<Answer, CliError> {
        let name = self.file.display().to_string();
        let declared = Declared::parse(&self.read()?)
            .map_err(|why| CliError::Usage(format!("{name}: {why}")))?;
        let present = present(remote).await?;
        self.check_names(&declared, &present)?;
        let plan = changes(&declared, &present, self.prune);
        self.check_default(remote, &plan).await?;
        let mut lines: Vec<String> = plan.iter().map(Change::line).collect();
        let kept = match self.prune {
            true => Vec::new(),
            false => diff::not_in_file(&declared, &present),
        };
        if !kept.is_empty() {
            lines.push(format!(
                "not in the file, and left alone without --prune: {}",
                kept.join(", ")
            ));
        }
        let mut value = json!({
            "dry_run": self.dry_run,
            "changes": plan.iter().map(Change::value).collect::<Vec<_>>(),
            "left_alone": kept,
        });
        if plan.is_empty() {
            lines.insert(
                0,
                "nothing to do: everything is as the file says".to_owned(),
            );
            let text = lines.join("\n");
            return Ok(Answer { text, value });
        }
        if self.dry_run {
            let tried = foreseen(remote, &plan, &present).await?;
            for (what, effect) in &tried {
                tell(&mut lines, what, effect);
            }
            value["effects"] = tried.into_iter().map(effect_value).collect();
            lines.push(format!(
                "{} would change, nothing was changed",
                many(plan.len())
            ));
            let text = lines.join("\n");
            return Err(CliError::WouldChange(Answer { text, value }));
        }
        make(remote, &plan).await?;
        lines.push(format!("{} changed", many(plan.len())));
        let text = lines.join("\n");
        Ok(Answer { text, value })
    }

    fn read(&self) -> Result<String, CliError> {
        let read = if self.file.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            std::fs::read_to_string(&self.file)
        };
        read.map_err(|error| {
            CliError::Usage(format!("cannot read {}: {error}", self.file.display()))
        })
    }

    /// A budget must name a policy that will be there; said before anything is changed.
    fn check_names(&self, declared: &Declared, present: &Declared) -> Result<(), CliError> {
        for (pattern, stated) in &declared.budgets {
            let Some(name) = stated.body.get("policy").and_then(Value::as_str) else {
                continue;
            };
            let in_file = declared.policies.contains_key(name);
            let stays = !self.prune && present.policies.contains_key(name);
            if !in_file && !stays {
                let where_from = if self.prune {
                    "which is not in the file, and --prune deletes what is not"
                } else {
                    "which neither the file nor the coordinator has"
                };
                return Err(CliError::Usage(format!(
                    "budget {pattern} names policy {name}, {where_from}; nothing was changed"
                )));
            }
        }
        Ok(())
    }

    /// A policy that is the default cannot go; said before anything is changed.
    async fn check_default(&self, remote: &Remote, plan: &[Change]) -> Result<(), CliError> {
        let goes = |name: &str| {
            let mut deleted = plan.iter().filter(|one| matches!(one.deed, Deed::Delete));
            deleted.any(|one| one.thing == Thing::Policy && one.name == name)
        };
        if !self.prune {
            return Ok(());
        }
        let settings = get(remote, "/v1/settings").await?;
        match settings.get("default_policy").and_then(Value::as_str) {
            Some(name) if goes(name) => Err(CliError::Usage(format!(
                "--prune would delete policy {name}, which is the default_policy: put it into the file, or change the \
                 setting first; nothing was changed"
            ))),
            _ => Ok(()),
        }
    }
}

fn many(things: usize) -> String {
    match things {
        1 => "1 thing".to_owned(),
        things => format!("{things} things"),
    }
}

impl ExportFlags {
    pub(super) async fn run(&self, remote: &Remote) -> Result<Answer, CliError> {
        let declared = present(remote).await?;
        let value = declared.shortest();
        let text = write::yaml(&value);
        let Some(path) = &self.output else {
            return Ok(Answer { text, value });
        };
        std::fs::write(path, &text).map_err(|error| CliError::Failed {
            code: "cannot_write",
            detail: format!("cannot write {}: {error}", path.display()),
        })?;
        let text = format!(
            "{} policies and {} budgets are written to {}",
            declared.policies.len(),
            declared.budgets.len(),
            path.display()
        );
        Ok(Answer { text, value })
    }
}

/// What the coordinator has.
async fn present(remote: &Remote) -> Result<Declared, CliError> {
    let policies = get(remote, "/v1/policies").await?;
    let budgets = get(remote, "/v1/budgets").await?;
    Declared::of_answers(&policies, &budgets).map_err(|why| CliError::Failed {
        code: "internal",
        detail: format!(
            "the coordinator has what this version of the command does not understand: {why}"
        ),
    })
}

/// What the changes would do to accounts, as far as each can be tried by itself: what
/// names a policy that is not there yet cannot.
async fn foreseen(
    remote: &Remote,
    plan: &[Change],
    present: &Declared,
) -> Result<Vec<(String, Value)>, CliError> {
    let mut all = Vec::new();
    let edited = plan.iter().filter(|change| {
        let is_there = present.policies.contains_key(&change.name);
        change.thing == Thing::Policy && is_there
    });
    for change in edited.take(TRIED_MAX) {
        if let Deed::Put { body, .. } = &change.deed {
            let path = format!("{}?dry_run=true", change.path()?);
            let tried = put(remote, &path, body).await?;
            all.push((format!("policy {}", change.name), tried));
        }
    }
    let budgets: Vec<Value> = plan
        .iter()
        .filter(|change| change.thing == Thing::Budget && !names_new(change, present))
        .filter_map(bulk_item)
        .collect();
    for part in parts(&budgets) {
        let body = json!({ "budgets": part });
        let tried = put(remote, "/v1/budgets?dry_run=true", &body).await?;
        all.push(("the budgets".to_owned(), tried));
    }
    let deleted = plan
        .iter()
        .filter(|change| change.thing == Thing::Budget && matches!(change.deed, Deed::Delete));
    for change in deleted.take(TRIED_MAX) {
        let path = format!("{}?dry_run=true", change.path()?);
        let tried = delete_if(remote, &path, &Condition::Anything).await?;
        all.push((format!("budget {}", change.name), tried));
    }
    Ok(all)
}

/// What was tried, and what it would do, in the API's own fields.
fn effect_value((what, mut effect): (String, Value)) -> Value {
    if let Value::Object(fields) = &mut effect {
        fields.insert("of".to_owned(), what.into());
    }
    effect
}

/// What concerns nobody needs no words.
fn tell(lines: &mut Vec<String>, what: &str, tried: &Value) {
    if tried.get("accounts").and_then(Value::as_u64) != Some(0) {
        lines.push(format!("{what}:"));
        lines.extend(effects(tried).lines().map(|line| format!("  {line}")));
    }
}

/// Whether a budget names a policy that is not there yet.
fn names_new(change: &Change, present: &Declared) -> bool {
    let Deed::Put { body, .. } = &change.deed else {
        return false;
    };
    let name = body.get("policy").and_then(Value::as_str);
    name.is_some_and(|name| !present.policies.contains_key(name))
}

/// Policies first, because budgets name them; what is to go, last. Each only if it is
/// still as it was seen.
async fn make(remote: &Remote, plan: &[Change]) -> Result<(), CliError> {
    let mut made = 0_usize;
    let puts = |thing| {
        let of_thing = plan.iter().filter(move |change| change.thing == thing);
        of_thing.filter(|change| matches!(change.deed, Deed::Put { .. }))
    };
    for change in puts(Thing::Policy) {
        if let Deed::Put { body, .. } = &change.deed {
            let path = change.path()?;
            let put = put_if(remote, &path, body, &change.condition).await;
            put.map_err(|error| after(made, error))?;
            made += 1;
        }
    }
    let budgets: Vec<Value> = puts(Thing::Budget).filter_map(bulk_item).collect();
    for part in parts(&budgets) {
        let body = json!({ "budgets": part });
        let put = put(remote, "/v1/budgets", &body).await;
        put.map_err(|error| after(made, error))?;
        made += part.len();
    }
    // Budgets before the policies that they name.
    for thing in [Thing::Budget, Thing::Policy] {
        for change in plan.iter().filter(|change| change.thing == thing) {
            if matches!(change.deed, Deed::Delete) {
                let deleted = delete_if(remote, &change.path()?, &change.condition).await;
                deleted.map_err(|error| after(made, error))?;
                made += 1;
            }
        }
    }
    Ok(())
}

/// Budgets for one request each.
fn parts(budgets: &[Value]) -> Vec<&[Value]> {
    let mut parts = Vec::new();
    let mut from = 0;
    let mut bytes = 0;
    for (place, budget) in budgets.iter().enumerate() {
        let length = budget.to_string().len();
        if place - from >= BUDGETS_PER_REQUEST || (bytes + length > BYTES_PER_REQUEST && bytes > 0)
        {
            parts.extend(budgets.get(from..place));
            from = place;
            bytes = 0;
        }
        bytes += length;
    }
    parts.extend(budgets.get(from..).filter(|rest| !rest.is_empty()));
    parts
}

/// A budget as one of many: with the etag that it must still have.
fn bulk_item(change: &Change) -> Option<Value> {
    let Deed::Put { body, .. } = &change.deed else {
        return None;
    };
    let mut item: Map<String, Value> = body.as_object()?.clone();
    item.insert("pattern".to_owned(), change.name.clone().into());
    let etag = match &change.condition {
        Condition::Still(etag) => etag.clone().into(),
        Condition::Absent | Condition::Anything => Value::Null,
    };
    item.insert("etag".to_owned(), etag);
    Some(item.into())
}

/// What went before a refusal is done.
fn after(made: usize, error: CliError) -> CliError {
    match error {
        CliError::Refused(Value::Object(mut problem)) => {
            let detail = problem.get("detail").and_then(Value::as_str);
            let field = problem.get("field").and_then(Value::as_str);
            let text = format!(
                "{}{}; {} changed before: look at it with --dry-run, and apply again",
                field.map(|field| format!("{field}: ")).unwrap_or_default(),
                detail.unwrap_or_default(),
                many(made)
            );
            problem.insert("detail".to_owned(), text.into());
            CliError::Refused(problem.into())
        }
        other => other,
    }
}

impl Change {
    /// Where the thing is.
    fn path(&self) -> Result<String, CliError> {
        match self.thing {
            Thing::Policy => Ok(format!("/v1/policies/{}", encoded(&self.name))),
            Thing::Budget => pattern_path("/v1/budgets/", &self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sent_in_parts_that_one_request_may_have() {
        let budgets: Vec<Value> = (0..25_000).map(Value::from).collect();
        let lengths: Vec<usize> = parts(&budgets).iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [10_000, 10_000, 5_000]);
        let long = Value::from("x".repeat(BYTES_PER_REQUEST / 2));
        let lengths: Vec<usize> = parts(&vec![long; 3])
            .iter()
            .map(|part| part.len())
            .collect();
        assert_eq!(lengths, [1, 1, 1]);
        assert!(parts(&[]).is_empty());
    }
}
