//! Cells of which a part can be computed before their state is known: whatever a backend computes ahead, or looks up, no bit of a result changes.

mod odd;

use std::sync::Arc;

use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::graph::Affine;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Retention, Source, UnfoldedChain};
use cellwright_cell_graph::{Datatype, Tensor, TypedCell};

use super::cells::{self, Draft};
use super::driver::{Deliveries, Driver, Placed, delivering_everything, growth_of, independent};
use super::{Make, Scope, Tolerance};
use crate::reference::{Elements, evaluate};
use cellwright_backend::{CellTypeId, LaneId};

/// Rows of each table of tokens here.
pub const TOKENS: usize = 11;

/// A cell, and which of its outputs are fed back to which of its inputs.
#[derive(Clone, Debug)]
pub struct Recurrent {
    /// The cell.
    pub cell: Arc<TypedCell>,
    /// `(output, input)`.
    pub feedback: Vec<(u32, u32)>,
}

fn weights(seed: u64, shapes: &[(&'static str, Vec<usize>)]) -> impl Fn(&str) -> Tensor + use<> {
    let shapes = shapes.to_vec();
    move |name| {
        let (index, (_, shape)) = shapes.iter().enumerate().find(|(_, (known, _))| *known == name).expect("a weight of the cell");
        random(name, shape, &mut Rng::new(seed * 100 + index as u64), 0.4)
    }
}

fn random(name: &str, shape: &[usize], rng: &mut Rng, scale: f32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| rng.float() * scale).collect();
    Tensor::from_f32(name, shape, &values)
}

/// PyTorch's names and shapes for `gates` gates.
fn gates(x: usize, hidden: usize, gates: usize) -> Vec<(&'static str, Vec<usize>)> {
    let n = gates * hidden;
    vec![
        ("weight_ih", vec![n, x]),
        ("weight_hh", vec![n, hidden]),
        ("bias_ih", vec![n]),
        ("bias_hh", vec![n]),
        ("emb.weight", vec![TOKENS, x]),
    ]
}

/// Recurrent cells over vectors and tokens, and odd ones: terms in another order, factors, two tokens, rows of rank 2, results that are wholly known.
#[must_use]
pub fn recurrent_cells(precision: Precision) -> Vec<Recurrent> {
    let token = |name: &str| Draft::new(name).known("token", Datatype::Int64, &[]);
    let carried = Draft::new("lstm fed its token").input("token", Datatype::Int64, &[]);
    let leaf = [("emb.weight", vec![TOKENS, 14]), ("leaf.weight", vec![39, 14]), ("leaf.bias", vec![39])];
    let head = [("emb.weight", vec![TOKENS, 12]), ("out.weight", vec![TOKENS, 12]), ("out.bias", vec![TOKENS])];
    let of = |draft: Draft, feedback: &[(u32, u32)]| Recurrent { cell: draft.at(precision).resolve(), feedback: feedback.to_vec() };
    vec![
        of(cells::lstm("lstm", 37, 45, &weights(1, &gates(37, 45, 4))), &[(0, 1), (1, 2)]),
        of(cells::gru("gru", 18, 33, &weights(2, &gates(18, 33, 3))), &[(0, 1)]),
        of(cells::rnn("rnn", 40, 17, "Tanh", &weights(3, &gates(40, 17, 1))), &[(0, 1)]),
        of(cells::rnn("thin rnn", 2, 17, "Relu", &weights(4, &gates(2, 17, 1))), &[(0, 1)]),
        of(cells::lstm_of_tokens(token("lstm of tokens"), 20, &weights(5, &gates(24, 20, 4))), &[(0, 1), (1, 2)]),
        of(cells::lstm_of_tokens(carried, 20, &weights(6, &gates(24, 20, 4))), &[(0, 1), (1, 2)]),
        of(cells::tree_leaf(13, &weights(7, &leaf)), &[]),
        of(cells::projection(12, TOKENS, &weights(8, &head)), &[(2, 0)]),
        of(odd::out_of_order(), &[(0, 1)]),
        of(odd::two_tokens(), &[(0, 2)]),
        of(odd::token_beside_known(), &[(0, 2)]),
        of(odd::matrices(), &[(0, 1)]),
        of(odd::wholly_known(), &[(1, 1)]),
        of(odd::onto_a_known_product(), &[(0, 1)]),
        of(odd::more_terms_than_a_product_has(), &[(0, 1)]),
        of(odd::concatenated(), &[(0, 2)]),
        of(odd::concatenated_matrices(), &[(0, 1)]),
    ]
}

/// A chain of that cell over the request's tensors, one for each input: known inputs take a row of theirs at each step, others its first at first.
fn chain_of(recurrent: &Recurrent, steps: u32) -> UnfoldedChain {
    let cell = &recurrent.cell;
    let source = |input: usize| Source::Rows { tensor: input as u32, at: Affine::EVERY };
    let mut chain = independent(0, cell.outputs.len(), (0..cell.inputs.len()).map(source).collect(), steps);
    chain.stages[0].retention = Retention::Double;
    for (output, input) in &recurrent.feedback {
        chain.stages[0].inputs[*input as usize].feedback = Some((0, *output));
    }
    chain
}

fn tensors_of(cell: &TypedCell, steps: usize, rng: &mut Rng) -> Vec<Arc<Tensor>> {
    let tensor = |port: &cellwright_cell_graph::Port| {
        let mut shape = vec![steps];
        shape.extend(port.shape.iter().map(|extent| *extent as usize));
        let count = shape.iter().product();
        let mut tensor = match port.datatype {
            Datatype::Fp32 => random("rows", &shape, rng, 1.0),
            _ => {
                let tokens: Vec<i64> = (0..count).map(|_| rng.below(2 * TOKENS as u64).cast_signed() - TOKENS as i64).collect();
                Tensor::from_i64("tokens", &shape, &tokens)
            }
        };
        if port.datatype == Datatype::Int32 {
            let tokens = tensor.to_i64().unwrap_or_default();
            tensor.data = tokens.iter().flat_map(|token| (*token as i32).to_le_bytes()).collect();
            tensor.datatype = Datatype::Int32;
        }
        Arc::new(tensor)
    };
    cell.inputs.iter().map(tensor).collect()
}

/// Steps of each chain.
const STEPS: u32 = 9;

/// Requests whose chains are run together.
pub const REQUESTS: usize = 24;

/// Everything that chains of so many requests deliver, run in tasks of so many rows at most and so many steps at most, at random.
#[must_use]
pub fn deliveries(
    make: &mut Make<'_>,
    (recurrent, requests): (&Recurrent, usize),
    (rows_most, steps_most): (u64, u32),
    rng: &mut Rng,
) -> Deliveries {
    let mut driver = Driver::new(make(), std::slice::from_ref(&recurrent.cell));
    let mut own = Rng::new(77);
    let growth = delivering_everything(&growth_of(vec![chain_of(recurrent, STEPS)]));
    let place = |_| {
        let tensors = tensors_of(&recurrent.cell, STEPS as usize, &mut own);
        driver.place(growth.clone(), &tensors, 0, &[])
    };
    let placed: Vec<Placed> = (0..requests).map(place).collect();
    let mut left: Vec<(LaneId, u32)> = placed.iter().map(|placed| (placed.lanes[0][0], 0)).collect();
    while !left.is_empty() {
        for at in (1..left.len()).rev() {
            left.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let rows = left.len().min(rng.between(1, rows_most as u32) as usize);
        let steps = rng.between(1, steps_most);
        let completed = driver.task(CellTypeId(0), &left[..rows], steps);
        assert!(completed.refused.is_empty(), "every token is in its table");
        driver.backend.recycle(completed);
        left[..rows].iter_mut().for_each(|(_, step)| *step += steps);
        left.retain(|(_, step)| *step < STEPS);
    }
    driver.delivered
}

/// Step by step and row by row, against tasks of many steps and rows.
///
/// # Panics
/// If a bit differs.
pub fn run(make: &mut Make<'_>, scope: &Scope) {
    let mut rng = Rng::new(5);
    for recurrent in scope.precisions.iter().copied().flat_map(recurrent_cells) {
        let alone = deliveries(make, (&recurrent, REQUESTS), (1, 1), &mut rng);
        assert!(alone.values().any(|bytes| bytes.iter().any(|byte| *byte != 0)));
        for most in [(1, STEPS), (24, 1), (6, STEPS + 3), (24, 5)] {
            let got = deliveries(make, (&recurrent, REQUESTS), most, &mut rng);
            assert!(
                got == alone,
                "`{}` in {}: tasks of up to {most:?} rows and steps give other bits",
                recurrent.cell.name,
                recurrent.cell.precision
            );
        }
        a_bad_token_fails_its_row(make, &recurrent);
    }
}

/// A token that is in no table is refused where it stands: at its step, for its row, with the table's size.
fn a_bad_token_fails_its_row(make: &mut Make<'_>, recurrent: &Recurrent) {
    let Some(token) = recurrent.cell.inputs.iter().position(|port| port.datatype == Datatype::Int64) else { return };
    let mut driver = Driver::new(make(), std::slice::from_ref(&recurrent.cell));
    let mut chain = chain_of(recurrent, 4);
    let bad_step = if chain.stages[0].inputs[token].feedback.is_some() { 0 } else { 2 };
    chain.stages[0].inputs[token].source = Source::Ints((0..4).map(|step| if step == bad_step { 11 } else { 1 }).collect());
    let tensors = tensors_of(&recurrent.cell, 4, &mut Rng::new(8));
    let mut good = chain.clone();
    good.stages[0].inputs[token].source = Source::Ints(vec![1; 4]);
    let lanes = [chain, good].map(|chain| driver.place(delivering_everything(&growth_of(vec![chain])), &tensors, 0, &[]).lanes[0][0]);
    let completed = driver.task(CellTypeId(0), &lanes.map(|lane| (lane, 0)), 4);
    let refused: Vec<(LaneId, u32)> = completed.refused.iter().map(|refused| (refused.lane, refused.step)).collect();
    assert_eq!(refused, [(lanes[0], bad_step as u32)], "`{}`", recurrent.cell.name);
    let text = completed.refused[0].error.to_string();
    assert!(text.starts_with("index 11 is out of range for a table of 11 rows"), "{text}");
    let steps = |lane| driver.delivered.range((lane, 0, 0)..=(lane, 0, u32::MAX)).count();
    assert_eq!([steps(lanes[0]), steps(lanes[1])], [bad_step as usize, 4]);
}

/// Both halves of a cell, one after the other, mean what the cell means.
///
/// # Panics
/// If they do not.
pub fn halves_mean_the_whole() {
    use cellwright_cell_graph::hoist::{self, Feed, Hoisted};
    let mut rng = Rng::new(9);
    for Recurrent { cell, .. } in Precision::ALL.into_iter().flat_map(recurrent_cells) {
        let split: Vec<Hoisted> = hoist::ahead(&cell).into_iter().chain(hoist::by_token(&cell).map(|by| by.hoisted)).collect();
        assert!(!split.is_empty() || cell.name == "thin rnn", "`{}` can be split", cell.name);
        for Hoisted { pre, step } in split {
            for _ in 0..5 {
                let rows = tensors_of(&cell, 1, &mut rng);
                let inputs: Vec<Elements> = rows.iter().map(|row| Elements::from_bytes(row.datatype, &row.data)).collect();
                let whole = evaluate(&cell, &inputs).expect("tokens are in their tables");
                let take = |feeds: &[Feed], given: &[Elements]| -> Vec<Elements> {
                    let feed = |feed: &Feed| match feed {
                        Feed::Own(input) => inputs[*input as usize].clone(),
                        Feed::Pre(output) => given[*output as usize].clone(),
                    };
                    feeds.iter().map(feed).collect()
                };
                let given = evaluate(&pre.cell, &take(&pre.feeds, &[])).expect("as before");
                let halves = evaluate(&step.cell, &take(&step.feeds, &given)).expect("as before");
                for (whole, halves) in whole.iter().zip(&halves) {
                    assert!(near(whole, halves), "`{}`: {whole:?} became {halves:?}", cell.name);
                }
            }
            assert_eq!(step.cell.outputs.len(), cell.outputs.len());
            assert!(pre.cell.flops > 0 && pre.cell.flops + step.cell.flops <= cell.flops + cell.flops / 8, "nothing is computed twice");
        }
    }
}

fn near(left: &Elements, right: &Elements) -> bool {
    match (left, right) {
        (Elements::Floats(left), Elements::Floats(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| Tolerance::default().accepts(*left, *right))
        }
        _ => left == right,
    }
}
