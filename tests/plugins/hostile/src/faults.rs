//! Faults that end a call before it answers: traps, loops, hunger, depth, and questions about tensors that do not exist.

use std::hint::black_box;

use crate::cellwright::plugin::host::note;
use crate::cellwright::plugin::request;
use crate::cellwright::plugin::types::Refusal;

/// Commits the fault of that name, in which case it does not return; does nothing for any other name.
pub fn commit(behaviour: &str) {
    match behaviour {
        "trap" => trap(),
        "panic" => {
            // What the SDK's panic hook does.
            note("hostile: panicked on purpose, at step 7");
            trap()
        }
        "loop" => spin(),
        "memory" => hoard(),
        "recurse" => {
            black_box(descend(black_box(1)));
        }
        "notes" => {
            for n in 0..100_000 {
                note(&format!("{n}: {}", "chatter ".repeat(1000)));
            }
            trap()
        }
        _ => {}
    }
}

#[cfg(target_arch = "wasm32")]
#[inline(always)]
fn trap() -> ! {
    core::arch::wasm32::unreachable()
}

/// Elsewhere it is only linted.
#[cfg(not(target_arch = "wasm32"))]
fn trap() -> ! {
    std::process::abort()
}

/// Asks for contents that are not there, or not of that type.
pub fn misread(behaviour: &str) {
    match behaviour {
        "read-no-such-tensor" => {
            black_box(request::floats(99));
        }
        "read-wrong-type" => {
            black_box(request::texts(0));
        }
        _ => {}
    }
}

/// Whether the request is one that a picky behaviour cannot bear: its first number is this.
pub fn unbearable() -> bool {
    request::floats(0).first() == Some(&-1000.0)
}

/// The refusal of that name.
pub fn refusal(behaviour: &str) -> Option<Refusal> {
    Some(match behaviour {
        "refuse-input" => Refusal::InvalidInput("I do not like this input".into()),
        "refuse-unsupported" => Refusal::Unsupported("I cannot do this".into()),
        "refuse-internal" => Refusal::Internal("I am broken".into()),
        _ => return None,
    })
}

fn spin() {
    let mut turns = 0_u64;
    loop {
        turns = black_box(turns.wrapping_add(1));
    }
}

fn hoard() {
    let mut hoard = Vec::new();
    loop {
        hoard.push(black_box(vec![1_u8; 1 << 20]));
    }
}

/// Uses a little of both stacks at each level, and has no last one.
fn descend(depth: u64) -> u64 {
    let frame = black_box([depth; 4]);
    if frame[0] == 0 { 0 } else { descend(frame[1] | 1) + frame[3] }
}
