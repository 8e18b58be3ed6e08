//! What happened when: for people, and for the replay of a run. Knows nothing of
//! what the lines mean.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use leasehold_checkers::{HistoryWriter, Record};

/// Lines of text with their moment, in a file and on standard error.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    began: Instant,
    file: Arc<Mutex<File>>,
}

impl Journal {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            file: Arc::new(Mutex::new(File::create(path)?)),
        })
    }

    pub(crate) fn say(&self, text: &str) {
        let line = format!("{:9.3} s  {text}", self.began.elapsed().as_secs_f64());
        eprintln!("{line}");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // What cannot be written was at least said.
        let _ = writeln!(file, "{line}");
    }
}

/// The history that checkers judge, written by everybody who asks something.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(Arc<Mutex<HistoryWriter>>);

impl Recorder {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(HistoryWriter::create(path)?))))
    }

    pub(crate) fn note(&self, record: &Record) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writer.write(record) {
            eprintln!("nemesis: the history cannot be written: {error}");
        }
    }

    pub(crate) fn flush(&self) -> std::io::Result<()> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flush()
    }
}
