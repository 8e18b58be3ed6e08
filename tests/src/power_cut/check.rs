//! Judges a folder that a cut or a flipped bit left, by opening it as a node does.
//! Knows nothing of how it came about.

use std::{
    io::Read as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::mpsc,
};

use leasehold_coordinator::store::{self, Identity, Opened, StoreError};

use super::{
    NODE_ID, Outcome,
    history::{At, Deed, History, State, at, chunks, content, pos},
};

/// What became of a store.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It opens, and everything is there that must be; and nothing else.
    Whole(Box<Whole>),
    /// It says that it cannot be used.
    Refused { code: &'static str, says: String },
    /// It opens, and something is wrong: the worst that can happen.
    Broken(String),
}

/// A store that is whole.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) state: State,
    pub(super) snapshot: Option<At>,
}

/// Opens the store, looks at all of it, writes to it and opens it again.
pub(super) fn judge(dir: &Path, history: &History) -> Verdict {
    let looked = catch_unwind(AssertUnwindSafe(|| look(dir, history)));
    match looked {
        Ok(Ok(whole)) => Verdict::Whole(Box::new(whole)),
        Ok(Err(error)) => match error.downcast_ref::<StoreError>() {
            Some(refused) => Verdict::Refused {
                code: refused.code(),
                says: refused.to_string(),
            },
            None => Verdict::Broken(error.to_string()),
        },
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            Verdict::Broken(format!("it panics: {}", said.unwrap_or("no message")))
        }
    }
}

fn look(dir: &Path, history: &History) -> Outcome<Whole> {
    let mut identity = Identity::load_or_create(dir, NODE_ID)?;
    if history
        .joined
        .is_some_and(|disk_id| disk_id != identity.disk_id || !identity.took_part)
    {
        return Err("it starts empty, though this disk took part in a cluster".into());
    }
    let opened = open(dir, &identity)?;
    let state = State::of(&opened.loaded);
    contents(&opened)?;
    history.may_find(&state)?;
    let snapshot = snapshot(&opened, history)?;
    if let Some(purged) = state.purged
        && snapshot.is_none_or(|newest| newest.1 < purged.1)
    {
        return Err(format!("purged up to {purged:?}, but the snapshot is {snapshot:?}").into());
    }

    // It can be used, and is what it was after one more start.
    identity.take_part(dir)?;
    let mut more = state.clone();
    let term = more.vote.map_or(0, |vote| vote.0) + 1;
    let term = more.last().map_or(term, |last| last.0.max(term));
    let next = more.last().map_or(0, |last| last.1 + 1);
    let deeds = [Deed::Vote(term, 1, true), Deed::Append((term, next))];
    let (done, wait) = mpsc::channel();
    opened.wal.submit(
        deeds.iter().map(|deed| deed.write()).collect(),
        Box::new(move |result| drop(done.send(result))),
    );
    wait.recv()
        .map_err(|_| "a write was never answered")?
        .map_err(|error| format!("a write failed: {error}"))?;
    for deed in deeds {
        more.apply(deed);
    }
    drop(opened);
    let again = open(dir, &identity).map_err(|error| format!("the second start: {error}"))?;
    if State::of(&again.loaded) != more {
        return Err("the second start finds something else".into());
    }
    contents(&again)?;
    Ok(Whole { state, snapshot })
}

fn open(dir: &Path, identity: &Identity) -> Result<Opened, StoreError> {
    store::open(dir, identity, |_| {})
}

fn contents(opened: &Opened) -> Outcome<()> {
    for (found, bytes) in &opened.loaded.entries {
        if *bytes != content(at(*found)) {
            return Err(format!("entry {} has other bytes", found.index).into());
        }
    }
    Ok(())
}

fn snapshot(opened: &Opened, history: &History) -> Outcome<Option<At>> {
    let Some((found, file)) = opened.snapshots.newest() else {
        return match history.snapshot {
            Some(at) => Err(format!("the durable snapshot of {at:?} is lost").into()),
            None => Ok(None),
        };
    };
    let found = at(*found);
    if history.snapshot != Some(found) && !history.snapshots_wanted.contains(&found) {
        return Err(format!("the snapshot is of {found:?}, not {:?}", history.snapshot).into());
    }
    let (description, mut reader) = file.read()?;
    let described: At = serde_json::from_slice(&description)?;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes)?;
    let expected: Vec<u8> = chunks(found).flatten().collect();
    if described != found || bytes != expected {
        return Err(format!("the snapshot {:?} has other bytes", pos(found)).into());
    }
    Ok(Some(found))
}
