//! A child process writes, says what was acknowledged, and is killed again and
//! again: while it writes, while it starts, while it purges.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{super::*, append, content, write};

const DIR: &str = "LEASEHOLD_KILL_DIR";
const ROUNDS: &str = "LEASEHOLD_KILL_ROUNDS";
/// Without the variable, rounds are made for about so long.
const PATIENCE: Duration = Duration::from_secs(10);

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The parent may be gone.
    let _ = out.write_all(format!("@{line}\n").as_bytes());
    let _ = out.flush();
}

/// The child: not a test by itself.
#[test]
#[ignore = "the child process of the test below"]
fn the_writer() {
    let Ok(dir) = env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let mut identity = Identity::load_or_create(dir, 1).unwrap();
    let opened = open(dir, &identity, |reason| panic!("{reason}")).unwrap();
    identity.take_part(dir).unwrap();
    let term = opened.loaded.vote.map_or(1, |vote| vote.term + 1);
    write(
        &opened,
        vec![Write::Vote(StoredVote {
            term,
            committed: true,
            node_id: 1,
        })],
    )
    .unwrap();
    say(&format!("vote {term}"));
    let mut last = opened.loaded.last();
    let first = opened.loaded.entries.first().map_or(0, |(at, _)| at.index);
    if let Some(end) = last.filter(|end| term % 3 == 0 && end.index > first + 20) {
        let keep = LogPos {
            index: end.index - 7,
            term: opened.loaded.term_at(end.index - 7).unwrap(),
        };
        say(&format!("cut {}", keep.index));
        write(&opened, vec![Write::TruncateAfter(Some(keep))]).unwrap();
        last = Some(keep);
    }
    let mut next = last.map_or(0, |last| last.index + 1);
    // Bounds what is under way: a permit goes in with each request, and comes out
    // when it is acknowledged.
    let (permit, permits) = mpsc::sync_channel(8);
    let permits = Arc::new(Mutex::new(permits));
    for round in 1_u64.. {
        let count = 1 + round % 5;
        let batch: Vec<Write> = (next..next + count)
            .map(|index| append(LogPos { term, index }))
            .collect();
        next += count;
        let end = next - 1;
        permit.send(()).unwrap();
        let (first, permits) = (next - count, Arc::clone(&permits));
        opened.wal.submit(
            batch,
            Box::new(move |result| {
                result.unwrap();
                say(&format!("ack {first} {end} {term}"));
                permits.lock().unwrap().recv().unwrap();
            }),
        );
        if round % 64 == 0 && end > 60 {
            let upto = LogPos {
                term,
                index: end - 60,
            };
            // Only entries of this run, whose term is known.
            if upto.index > last.map_or(0, |last| last.index) {
                say(&format!("purge {}", upto.index));
                write(&opened, vec![Write::PurgeTo(upto)]).unwrap();
            }
        }
    }
}

#[test]
fn kill_9_loses_no_acknowledged_write_and_leaves_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let rounds: Option<usize> = env::var(ROUNDS).ok().map(|rounds| rounds.parse().unwrap());
    let started = Instant::now();
    let mut must: BTreeMap<u64, u64> = BTreeMap::new();
    let mut vote = 0;
    let mut acknowledged = 0;
    let mut round = 0;
    while rounds.map_or(started.elapsed() < PATIENCE, |rounds| round < rounds) {
        round += 1;
        let mut child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::kill::the_writer",
                "--ignored",
                "--nocapture",
            ])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let (said, hear) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.starts_with('@') {
                    said.send(line).unwrap();
                }
            }
        });
        // Three of four are killed while they write, the others while they start.
        let mut lines = Vec::new();
        if round % 4 != 0 {
            lines.extend(hear.recv_timeout(Duration::from_secs(20)));
        }
        thread::sleep(Duration::from_millis((round as u64 * 37) % 110));
        child.kill().unwrap();
        child.wait().unwrap();
        reader.join().unwrap();
        lines.extend(hear);
        for line in lines {
            let words: Vec<&str> = line.trim_start_matches('@').split(' ').collect();
            let number = |place: usize| words[place].parse::<u64>().unwrap();
            match words[0] {
                "vote" => vote = number(1),
                "cut" => drop(must.split_off(&(number(1) + 1))),
                "purge" => must = must.split_off(&(number(1) + 1)),
                "ack" => {
                    acknowledged += number(2) - number(1) + 1;
                    must.extend((number(1)..=number(2)).map(|index| (index, number(3))));
                }
                other => panic!("{other}"),
            }
        }
        let identity = Identity::load_or_create(dir.path(), 1).unwrap();
        let opened = open(dir.path(), &identity, |reason| panic!("{reason}")).unwrap();
        assert!(
            opened.loaded.vote.map_or(0, |vote| vote.term) >= vote,
            "a vote is lost in round {round}"
        );
        for (index, term) in &must {
            assert_eq!(
                opened.loaded.term_at(*index),
                Some(*term),
                "entry {index} is lost in round {round}"
            );
        }
        for (at, bytes) in &opened.loaded.entries {
            assert_eq!(
                *bytes,
                content(*at),
                "entry {} is wrong in round {round}",
                at.index
            );
        }
    }
    println!("{round} kills, {acknowledged} acknowledged entries");
    assert!(acknowledged > 0);
}
