//! What deciding takes of memory: a crowd that stays as large as it is allocates nothing, and a request in flight holds little beside its graph.
//!
//! The crowds are those of `cellwright-lab bench scheduler`, smaller.
#![expect(unsafe_code, reason = "an allocator that counts is one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cellwright_simulator::workload::{Decoding, Lengths, Pairs, Trees};
use cellwright_simulator::{Crowd, Members, Workload};

/// Counts what each thread takes: how often, and bytes less those given back.
struct Counting;

thread_local! {
    static TAKEN: Cell<(u64, i64)> = const { Cell::new((0, 0)) };
}

fn note(times: u64, bytes: i64) {
    // A thread that ends may allocate when its own numbers are gone.
    let _ = TAKEN.try_with(|taken| taken.set((taken.get().0 + times, taken.get().1 + bytes)));
}

// SAFETY: every call is handed on as it is; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size as i64 - layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one `handle` takes.
fn decide(crowd: &mut Crowd) -> (u64, i64) {
    let before = TAKEN.get();
    crowd.decide();
    let taken = (TAKEN.get().0 - before.0, TAKEN.get().1 - before.1);
    crowd.take_in();
    taken
}

/// Decides until so many requests have finished; how many did, and what that took.
fn finish(crowd: &mut Crowd, requests: u64) -> (u64, u64, i64) {
    let mut sum = (0, 0, 0);
    while sum.0 < requests {
        crowd.prepare();
        let (times, bytes) = decide(crowd);
        sum = (sum.0 + crowd.decided().finished, sum.1 + times, sum.2 + bytes);
    }
    sum
}

/// Bytes of a request, at most.
struct Most {
    /// All of them: when the crowd has just arrived, and when it is long as large as it is.
    just_arrived: i64,
    steady: i64,
    /// Beside what says of each node how it stands, always.
    beside_nodes: i64,
}

/// A request holds so many bytes at most, when it has just arrived and when the crowd is long as large as it is; and then almost none allocates.
#[track_caller]
fn assert_lean(kind: &str, members: Members, most: &Most) {
    /// Tables still grow now and then, ever less: without what is kept, every request of a pair or a tree allocates twice to four times.
    const ALLOCATIONS_PER_REQUEST_MAX: f64 = 0.01;
    let in_flight = i64::from(members.in_flight);
    let mut crowd = Crowd::new(members, 3);
    let mut held = 0;
    while crowd.prepare_arrivals() {
        held += decide(&mut crowd).1;
    }
    let beside = |crowd: &Crowd, held: i64| (held - crowd.bytes_of_nodes() as i64) / in_flight;
    let (just_arrived, beside_first) = (held / in_flight, beside(&crowd, held));
    let (_, _, grown) = finish(&mut crowd, 20 * in_flight as u64);
    let (finished, times, more) = finish(&mut crowd, 10 * in_flight as u64);
    let held = held + grown + more;
    let (steady, beside_last) = (held / in_flight, beside(&crowd, held));
    let per_request = times as f64 / finished as f64;
    let found = format!("{kind}: {just_arrived} bytes, {beside_first} beside its nodes; when steady {steady} and {beside_last}");
    assert!(just_arrived <= most.just_arrived && steady <= most.steady, "{found}");
    assert!(beside_first.max(beside_last) <= most.beside_nodes, "{found}");
    assert!(per_request <= ALLOCATIONS_PER_REQUEST_MAX, "{found} {times} allocations for {finished} requests");
}

fn of_one(kind: (Workload, Vec<u32>), in_flight: u32) -> Members {
    Members { kinds: vec![kind], models: 1, tenants: 1, in_flight }
}

fn chains() -> (Workload, Vec<u32>) {
    (Workload::lstm(Lengths::EUROPARL), vec![512])
}

fn trees() -> (Workload, Vec<u32>) {
    (Workload::trees(&Trees::treebank(1)), vec![64])
}

fn pairs() -> (Workload, Vec<u32>) {
    (Workload::seq2seq(Pairs::EUROPARL, Decoding::Known), vec![512, 256])
}

#[test]
fn a_crowd_of_chains_is_lean() {
    assert_lean("chains", of_one(chains(), 1000), &Most { just_arrived: 310, steady: 415, beside_nodes: 415 });
}

#[test]
fn a_crowd_of_trees_is_lean() {
    assert_lean("trees", of_one(trees(), 1000), &Most { just_arrived: 765, steady: 850, beside_nodes: 600 });
}

#[test]
fn a_crowd_of_pairs_is_lean() {
    assert_lean("pairs", of_one(pairs(), 1000), &Most { just_arrived: 440, steady: 555, beside_nodes: 555 });
}

#[test]
fn a_crowd_of_many_models_is_lean() {
    let kinds = vec![chains(), trees(), pairs()];
    assert_lean(
        "mix",
        Members { kinds, models: 30, tenants: 6, in_flight: 3000 },
        &Most { just_arrived: 500, steady: 540, beside_nodes: 540 },
    );
}
