//! One flipped byte, a missing file, a shortened file: an error or nothing lost,
//! never a shorter log and never an empty start.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{super::*, append, write};

/// How many places of a file are flipped; the variable asks for more.
const SAMPLES: u64 = 20;
const SAMPLES_VARIABLE: &str = "LEASEHOLD_DAMAGE_SAMPLES";

fn build(dir: &Path) -> (Loaded, LogPos) {
    let mut identity = Identity::load_or_create(dir, 1).unwrap();
    let mut opened = open(dir, &identity, |reason| panic!("{reason}")).unwrap();
    identity.take_part(dir).unwrap();
    write(
        &opened,
        vec![Write::Vote(StoredVote {
            term: 1,
            committed: true,
            node_id: 1,
        })],
    )
    .unwrap();
    for index in 0..200 {
        write(&opened, vec![append(LogPos { term: 1, index })]).unwrap();
    }
    let at = LogPos { term: 1, index: 99 };
    let mut writer = opened.snapshots.create(b"what it is").unwrap();
    for chunk in 0..20_u8 {
        writer.frame(&[chunk; 500]).unwrap();
    }
    let file = writer.finish().unwrap();
    opened.snapshots.adopt(at, &file).unwrap();
    write(
        &opened,
        vec![
            Write::PurgeTo(at),
            Write::Committed(Some(LogPos {
                term: 1,
                index: 150,
            })),
        ],
    )
    .unwrap();
    write(
        &opened,
        vec![Write::Vote(StoredVote {
            term: 2,
            committed: false,
            node_id: 3,
        })],
    )
    .unwrap();
    write(
        &opened,
        vec![append(LogPos {
            term: 2,
            index: 200,
        })],
    )
    .unwrap();
    drop(opened);
    let opened = reopen(dir).unwrap();
    (opened.loaded.clone(), at)
}

fn reopen(dir: &Path) -> Result<Opened, StoreError> {
    let identity = Identity::load_or_create(dir, 1)?;
    open(dir, &identity, |_| {})
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let target = to.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            copy(&item.path(), &target);
        } else {
            fs::copy(item.path(), target).unwrap();
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for item in fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Opens a damaged copy: `true` if it is intact, `false` if it is refused.
fn intact_or_refused(dir: &Path, whole: &Loaded, at: LogPos, what: &str) -> bool {
    match reopen(dir) {
        Err(error) => {
            let code = error.code();
            assert!(
                ["damaged_store", "unknown_format", "store_io"].contains(&code),
                "{what}: {error}"
            );
            assert!(
                error.to_string().contains(dir.to_str().unwrap()),
                "{what}: names no file: {error}"
            );
            false
        }
        Ok(opened) => {
            let found = &opened.loaded;
            assert_eq!(found.entries, whole.entries, "{what}: entries");
            assert_eq!(found.purged, whole.purged, "{what}: purged");
            assert!(found.vote >= whole.vote, "{what}: vote");
            let snapshot = opened
                .snapshots
                .newest()
                .unwrap_or_else(|| panic!("{what}: no snapshot"));
            assert_eq!(snapshot.0, at, "{what}: snapshot");
            true
        }
    }
}

#[test]
fn a_flipped_byte_is_noticed_or_does_no_harm() {
    let home = tempfile::tempdir().unwrap();
    let original = home.path().join("original");
    let (whole, at) = build(&original);
    let samples =
        std::env::var(SAMPLES_VARIABLE).map_or(SAMPLES, |samples| samples.parse().unwrap());
    let (mut intact, mut refused) = (0, 0);
    for file in files(&original) {
        let relative = file.strip_prefix(&original).unwrap();
        let length = fs::metadata(&file).unwrap().len();
        let step = (length / samples).max(1);
        // An uneven step, so that samples do not all hit the same field.
        let mut place = 0;
        while place < length {
            let copied = home.path().join("copy");
            copy(&original, &copied);
            let mut bytes = fs::read(&file).unwrap();
            bytes[place as usize] ^= 0x10;
            fs::write(copied.join(relative), bytes).unwrap();
            let what = format!("{} at {place}", relative.display());
            if intact_or_refused(&copied, &whole, at, &what) {
                intact += 1;
            } else {
                refused += 1;
            }
            fs::remove_dir_all(&copied).unwrap();
            place += step + place % 7;
        }
    }
    println!("{intact} intact, {refused} refused");
    assert!(refused > 0);
}

#[test]
fn a_missing_or_shortened_file_is_noticed_or_does_no_harm() {
    let home = tempfile::tempdir().unwrap();
    let original = home.path().join("original");
    let (whole, at) = build(&original);
    for file in files(&original) {
        let relative = file.strip_prefix(&original).unwrap();
        let length = fs::metadata(&file).unwrap().len();
        for keep in [
            None,
            Some(0),
            Some(length / 2),
            Some(length.saturating_sub(1)),
        ] {
            let copied = home.path().join("copy");
            copy(&original, &copied);
            let target = copied.join(relative);
            match keep {
                None => fs::remove_file(&target).unwrap(),
                Some(keep) => fs::File::options()
                    .write(true)
                    .open(&target)
                    .unwrap()
                    .set_len(keep)
                    .unwrap(),
            }
            let what = format!("{} cut to {keep:?} of {length}", relative.display());
            // A missing snapshot is the replica's to notice: the log was cut up to it.
            if relative.starts_with("snapshots") && keep.is_none() {
                assert!(reopen(&copied).unwrap().snapshots.newest().is_none());
            } else {
                intact_or_refused(&copied, &whole, at, &what);
            }
            fs::remove_dir_all(&copied).unwrap();
        }
    }
    for folder in ["log", "snapshots"] {
        let copied = home.path().join("copy");
        copy(&original, &copied);
        fs::remove_dir_all(copied.join(folder)).unwrap();
        if folder == "log" {
            assert_eq!(reopen(&copied).err().unwrap().code(), "damaged_store");
        } else {
            assert!(reopen(&copied).unwrap().snapshots.newest().is_none());
        }
        fs::remove_dir_all(&copied).unwrap();
    }
}

#[test]
fn the_log_of_another_day_is_behind_its_watermark() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    build(&dir);
    let old_log = home.path().join("old log");
    copy(&dir.join("log"), &old_log);
    let opened = reopen(&dir).unwrap();
    write(
        &opened,
        vec![append(LogPos {
            term: 2,
            index: 201,
        })],
    )
    .unwrap();
    drop(opened);
    fs::remove_dir_all(dir.join("log")).unwrap();
    copy(&old_log, &dir.join("log"));
    let error = reopen(&dir).err().unwrap();
    assert_eq!(error.code(), "damaged_store");
    assert!(
        error
            .to_string()
            .contains("entry 201 of term 2 was durable, but the log ends at entry 200"),
        "{error}"
    );
}

#[test]
fn a_newer_format_is_named_and_not_touched() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    build(&dir);
    let body = format!(
        "leasehold identity 2\nnode_id 1\ndisk_id {:032x}\ntook_part true\n",
        5
    );
    let text = format!("{body}crc32 {:08x}\n", crc32fast::hash(body.as_bytes()));
    fs::write(dir.join("identity"), &text).unwrap();
    assert_eq!(reopen(&dir).err().unwrap().code(), "unknown_format");
    assert_eq!(fs::read_to_string(dir.join("identity")).unwrap(), text);
}

#[test]
fn a_damaged_snapshot_is_named_with_the_place_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut folder = SnapshotFolder::open(dir.path()).unwrap();
    let mut writer = folder.create(b"description").unwrap();
    for chunk in [[1; 100], [2; 100]] {
        writer.frame(&chunk).unwrap();
    }
    let file = writer.finish().unwrap();
    folder.adopt(LogPos { term: 1, index: 5 }, &file).unwrap();
    let path = dir.path().join("00000000000000000005-1.snap");
    let good = fs::read(&path).unwrap();
    // 12 bytes of header, then frames: 8 bytes each before the description and chunks.
    let second_chunk = 12 + (8 + 11) + (8 + 100);
    for (damage, said) in [
        (
            Some(second_chunk + 20),
            format!("the checksum of a chunk is wrong, at or after byte {second_chunk}"),
        ),
        (None, "it ends too early, at or after byte".to_owned()),
    ] {
        let mut bad = good.clone();
        match damage {
            Some(place) => bad[place] ^= 1,
            None => bad.truncate(good.len() - 1),
        }
        fs::write(&path, bad).unwrap();
        let error = SnapshotFolder::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&said), "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains("under a new id"), "{error}");
    }
}
