//! Sessions: whichever call of a plugin it is, tensors go by the numbers that the host knows them by.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it must be")]

use std::cell::RefCell;

use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Described, TestRequest};
use cellwright_guest::{Cell, plugin};

/// A running sum over a session, of which each chunk brings `x` and `weight`: every chunk is a chain that begins where the last one ended, and is
/// announced with the sum of its `weight`. It keeps the tensors of so many chunks before.
struct Session<const KEPT: u32>(Cell);

const PER_CHUNK: u32 = 2;

impl<const KEPT: u32> Session<KEPT> {
    /// The next chain, after so many, and what to be called with.
    fn grow(&self, request: &Request, chains: u32) -> Result<Growth, Refusal> {
        let x = request.input("x")?.sequence(Int64, &[], 100)?;
        let weight: i64 = request.input("weight")?.ints()?.iter().sum();
        let mut growth = GrowthBuilder::after(chains);
        let mut chain = growth.chain(x.count).stage(&self.0).input("by", x.forward());
        if chains > 0 {
            chain = chain.input("n", Source::Last(OutputRef { chain: chains - 1, stage: 0, output: 0 }));
        }
        let chain = chain.add();
        growth.watch(vec![chain.output("n")]).keep(chain.output("n")).state(format!("{} {weight}", chains + 1).into_bytes());
        Ok(growth.finish())
    }

    /// Nothing but to wait for the next chunk.
    fn wait(request: &Request, state: &[u8]) -> Growth {
        let chains: u32 = chains(state);
        let mut growth = GrowthBuilder::after(chains);
        growth.keep(OutputRef { chain: chains - 1, stage: 0, output: 0 }).state(state.into());
        growth.await_input(request.end().saturating_sub(PER_CHUNK * KEPT));
        growth.finish()
    }
}

fn chains(state: &[u8]) -> u32 {
    std::str::from_utf8(state).unwrap().split_once(' ').unwrap().0.parse().unwrap()
}

impl<const KEPT: u32> Plugin for Session<KEPT> {
    fn describe(_: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
        let mut model = ModelBuilder::new();
        model.input("x", Int64, &[-1]).input("weight", Int64, &[-1]);
        let cell = model.cell("sum", |cell| {
            let (n, by) = (cell.state("n", Int64, &[]), cell.input("by", Int64, &[]));
            let sum = cell.add(n, by);
            cell.next(n, sum);
        });
        Ok((Self(cell), model.finish()))
    }

    fn unfold(&self, request: &Request) -> Result<Growth, Refusal> {
        self.grow(request, 0)
    }

    fn resume(&self, state: &[u8], event: &Event, request: &Request) -> Result<Reaction, Refusal> {
        Ok(match event {
            Event::Input(_) => Reaction::grow(self.grow(request, chains(state))?),
            Event::Values(_) => Reaction::grow(Self::wait(request, state)),
            Event::EndOfInput => Reaction::nothing(),
        })
    }
}

/// What the session has of its chunks from that one on, up to the one before `end`; `weight` of chunk n is n.
fn chunks(range: std::ops::Range<u32>) -> TestRequest {
    let first = TestRequest::new().from_tensor(PER_CHUNK * range.start);
    range.fold(first, |request, n| request.ints("x", &[2], &[1, 2]).ints("weight", &[1], &[n.into()]))
}

/// The tensor of which the chain takes rows.
fn tensor(growth: &Growth) -> u32 {
    match &growth.chains[0].stages[0].inputs[1] {
        Source::Rows(rows) => rows.tensor,
        other => panic!("{other:?}"),
    }
}

thread_local! {
    static FORGETFUL: RefCell<Option<Session<0>>> = const { RefCell::new(None) };
    static KEEPING: RefCell<Option<Session<1>>> = const { RefCell::new(None) };
}

/// Plays the host for a session of four chunks, by the functions that a component exports.
fn play<const KEPT: u32>(holder: &'static plugin::Holder<Session<KEPT>>) {
    plugin::describe(holder, vec![]).unwrap();
    let mut growth = plugin::unfold(holder, &chunks(0..1)).unwrap();
    for chunk in 0..4 {
        assert_eq!(tensor(&growth), PER_CHUNK * chunk);
        let before = chunk.saturating_sub(KEPT);
        let next = growth.next.unwrap();
        assert_eq!(next.keep_tensors_from, 0, "while it watches it says nothing of tensors");
        let seen = plugin::resume(holder, &next.state, &Event::Values(vec![]), &chunks(before..chunk + 1)).unwrap();
        let next = seen.growth.unwrap().next.unwrap();
        let kept = (chunk + 1).saturating_sub(KEPT);
        assert_eq!(next.keep_tensors_from, PER_CHUNK * kept);
        let input = Event::Input(PER_CHUNK * (chunk + 1));
        growth = plugin::resume(holder, &next.state, &input, &chunks(kept..chunk + 2)).unwrap().growth.unwrap();
    }
}

#[test]
fn tensors_are_numbered_on_where_none_are_kept() {
    play(&FORGETFUL);
}

#[test]
fn tensors_are_numbered_on_where_some_are_kept() {
    play(&KEEPING);
}

#[test]
fn a_session_that_reads_contents_is_tested_without_a_host() {
    let session = Described::<Session<0>>::new(&[]).unwrap();
    let first = session.unfold(&chunks(0..1)).unwrap();
    assert_eq!(first.next.unwrap().state, b"1 0");
    let growth = session.resume(b"1 0", &Event::Input(2), &chunks(1..2)).unwrap().growth.unwrap();
    assert_eq!((tensor(&growth), &growth.next.unwrap().state[..]), (2, &b"2 1"[..]));
    assert_eq!(growth.chains[0].stages[0].inputs[0], Source::Last(OutputRef { chain: 0, stage: 0, output: 0 }));
    let waiting = session.resume(b"2 1", &Event::Values(vec![]), &chunks(1..2)).unwrap().growth.unwrap();
    assert_eq!(waiting.next.unwrap().keep_tensors_from, 4);
}

#[test]
#[should_panic(expected = "the request has no tensor 1")]
fn a_tensor_that_was_let_go_of_is_not_there() {
    cellwright_guest::Incoming::ints(&chunks(1..2), 1);
}

#[test]
fn to_let_go_of_more_than_there_is_leaves_the_numbers_right() {
    /// Lets go of all that has come and will come.
    struct Careless;
    impl Plugin for Careless {
        fn describe(_: &Parameters, _: &Bundle) -> Result<(Self, Description), Refusal> {
            Ok((Self, ModelBuilder::new().finish()))
        }
        fn unfold(&self, _: &Request) -> Result<Growth, Refusal> {
            let mut growth = GrowthBuilder::new();
            growth.await_input(u32::MAX);
            Ok(growth.finish())
        }
        fn resume(&self, _: &[u8], _: &Event, request: &Request) -> Result<Reaction, Refusal> {
            Err(Refusal::InvalidInput(format!("tensor {}", request.input("x")?.tensor)))
        }
    }
    thread_local! {
        static CARELESS: RefCell<Option<Careless>> = const { RefCell::new(None) };
    }
    plugin::describe(&CARELESS, vec![]).unwrap();
    let next = plugin::unfold(&CARELESS, &chunks(0..1)).unwrap().next.unwrap();
    let refusal = plugin::resume(&CARELESS, &next.state, &Event::Input(2), &chunks(1..2)).unwrap_err();
    assert_eq!(refusal.sentence(), "tensor 2");
}
