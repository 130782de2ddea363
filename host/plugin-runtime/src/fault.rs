//! From an engine's error to whose fault it is and one sentence that says so.

use wasmtime::{Error, PoolConcurrencyLimitError, Trap, WasmBacktrace};

use crate::abi::types;
use crate::convert::Unfit;
use crate::error::{Blame, CallError, Fault, LimitReached, Site};
use crate::limits::Limits;
use crate::sentence;

/// The engine's private error for answers that are too large says this.
const TOO_MUCH_DATA: &str = "fuel allocated for hostcalls has been exhausted";

/// Frames that are told.
const FRAMES_MAX: usize = 6;
/// How functions of Rust's panics begin, which are the same in every panic.
const OF_PANICS: [&str; 5] = ["core::panicking::", "std::panicking::", "std::sys::", "__rustc", "rust_panic"];

/// The longest stack of a guest, as the engine was told.
#[derive(Clone, Copy)]
pub(crate) struct StackBytes(pub(crate) usize);

/// What an error that ended a call means.
pub(crate) fn classify(error: &Error, mut site: Box<Site>, limits: &Limits, stack: StackBytes) -> CallError {
    site.frames = frames(error);
    if error.is::<PoolConcurrencyLimitError>() {
        return CallError::Busy { site };
    }
    if let Some(limit) = limit_reached(error, limits, stack) {
        return CallError::Limit { site, limit };
    }
    match error.downcast_ref::<Blame>() {
        Some(Blame::Request(sentence)) => CallError::Refused { fault: Fault::InvalidInput, sentence: sentence.clone(), site },
        Some(Blame::Plugin(cause)) => CallError::Failed { site, cause: cause.clone() },
        None => CallError::Failed { site, cause: cause(error) },
    }
}

/// Whether no instance could be had because all are in use.
pub(crate) fn is_busy(error: &Error) -> bool {
    error.is::<PoolConcurrencyLimitError>()
}

fn limit_reached(error: &Error, limits: &Limits, stack: StackBytes) -> Option<LimitReached> {
    if let Some(limit) = error.downcast_ref::<LimitReached>() {
        return Some(*limit);
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => Some(LimitReached::Stack(stack.0)),
        Some(_) => None,
        None => {
            error.chain().any(|cause| cause.to_string().contains(TOO_MUCH_DATA)).then_some(LimitReached::AnswerBytes(limits.answer_bytes))
        }
    }
}

fn cause(error: &Error) -> String {
    let root = error.root_cause().to_string();
    let mut cause = sentence::of(root.strip_prefix("wasm trap: ").unwrap_or(&root));
    if matches!(error.downcast_ref::<Trap>(), Some(Trap::MemoryOutOfBounds)) {
        cause.push_str(" (a stack overflow can end like this, too)");
    }
    cause
}

/// The functions in which a call ended, without those of its language's own panic.
fn frames(error: &Error) -> Vec<String> {
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    let names = frames.iter().filter_map(|frame| frame.func_name()).map(sentence::of_function);
    names.filter(|name| !OF_PANICS.iter().any(|prefix| name.starts_with(prefix))).take(FRAMES_MAX).collect()
}

/// A refusal in the plugin's own words.
pub(crate) fn refused(refusal: types::Refusal, site: Box<Site>) -> CallError {
    let (fault, sentence) = match refusal {
        types::Refusal::InvalidInput(sentence) => (Fault::InvalidInput, sentence),
        types::Refusal::Unsupported(sentence) => (Fault::Unsupported, sentence),
        types::Refusal::Internal(sentence) => (Fault::Internal, sentence),
    };
    let mut sentence = sentence::of(&sentence);
    if sentence.is_empty() {
        sentence.push_str("the plugin refuses this and does not say why");
    }
    CallError::Refused { fault, sentence, site }
}

/// An answer that was read and cannot be taken.
pub(crate) fn unfit(unfit: Unfit, site: Box<Site>) -> CallError {
    match unfit {
        Unfit::TooMuch(limit) => CallError::Limit { site, limit },
        Unfit::Malformed(cause) => CallError::Failed { site, cause: sentence::of(&cause) },
    }
}
