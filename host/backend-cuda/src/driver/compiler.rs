//! Who compiles the texts of kernels.

use std::fmt;
use std::sync::{Arc, Once};

type Compile = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// A compiler for one device's architecture, on any thread.
#[derive(Clone)]
pub struct Compiler {
    name: String,
    compile: Arc<Compile>,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Compiler {
    /// Of that name, which keeps what it has compiled or says what it does not take.
    pub(crate) fn new(name: String, compile: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name, compile: Arc::new(compile) }
    }

    /// Such as `NVRTC 13.0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compiles a text, so that [`Driver::compiled`](super::Driver::compiled) need not wait for it. False: it does not take it, which is said in the log.
    #[must_use]
    pub fn takes(&self, source: &str) -> bool {
        (self.compile)(source).inspect_err(|said| refused(said)).is_ok()
    }
}

/// Says once in a process what a compiler does not take: it is this program's fault, and what follows is the same again.
pub(super) fn refused(said: &str) {
    /// Bytes that are told of it.
    const SAID_MAX: usize = 2000;
    static ONCE: Once = Once::new();
    let end = (0..=SAID_MAX.min(said.len())).rev().find(|end| said.is_char_boundary(*end)).unwrap_or_default();
    ONCE.call_once(|| tracing::warn!("the compiler refuses a group, which is interpreted instead: {}", said[..end].trim()));
}
