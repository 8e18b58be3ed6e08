//! The one switch between the standard library's synchronisation and loom's.
//! Knows nothing of what is synchronised.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use std::sync::PoisonError;

/// Locks. A thread that panicked while it held the lock does not take the
/// spending path of the whole process down with it: every critical section
/// leaves the books consistent after each of its steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Orders what was taken before the look at the clock that follows. On x86-64 a
/// locked read-modify-write is a full barrier already; elsewhere its store may
/// still be on its way while the counter of the clock is read.
#[inline]
pub(crate) fn taken_before_look() {
    #[cfg(not(any(loom, target_arch = "x86_64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}
