//! Tables of what a step begins with, by token.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellwright_backend::Backend;
use cellwright_backend_cuda::driver::emulated::{Control, Emulated, Emulation};
use cellwright_backend_cuda::{CudaOptions, CudaWorker};
use cellwright_cell_graph::Datatype::{Fp32, Int32, Int64};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::unfolded::{Delivery, Source};
use cellwright_cell_graph::{Tensor, TypedCell};
use cellwright_conformance::cells::{self, Draft};
use cellwright_conformance::driver::{Deliveries, Driver, growth_of};

use crate::recurrent::forms::{split, states};
use crate::recurrent::{CELL, TOKENS, UNITS, count, launched, lstm_of_tokens, over_rows, random, weights};

/// A worker whose weights may take so many bytes.
pub(crate) fn with_budget(weight_bytes: u64) -> (CudaWorker, Control) {
    let device = Emulated::new(&Emulation { seed: 9, memory_bytes: 64 << 20, ..Emulation::default() });
    let control = device.control();
    let options = CudaOptions { arena_bytes: Some(1 << 20), frame_bytes: Some(1 << 20), ring_bytes: 1 << 20, ..CudaOptions::default() };
    let options = CudaOptions { weight_bytes: Some(weight_bytes), ..options };
    (CudaWorker::new(Box::new(device), options).expect("a device made of threads"), control)
}

/// All tokens at all steps, from the beginning and from the end of the table.
fn over_all_tokens(cell: &Arc<TypedCell>, weight_bytes: u64) -> (Deliveries, usize) {
    let (worker, control) = with_budget(weight_bytes);
    let mut driver = Driver::new(Box::new(worker), std::slice::from_ref(cell));
    let _ = control.take_log();
    let tokens = TOKENS as i64;
    let rows: Vec<_> = (0..3)
        .map(|by| {
            let mut chain = over_rows(1, 2 * TOKENS as u32);
            chain.stages[0].delivery = vec![Delivery::All; cell.outputs.len()];
            let tokens = (0..2 * tokens).map(|step| (step + 5 * by) % (2 * tokens) - tokens);
            chain.stages[0].inputs[0].source = Source::Ints(tokens.collect());
            (driver.place(Arc::new(growth_of(vec![chain])), &[], 0, &[]).lanes[0][0], 0)
        })
        .collect();
    driver.task(CELL, &rows[..1], 1);
    driver.task(CELL, &[(rows[0].0, 1), rows[1]], 4);
    driver.task(CELL, &[(rows[0].0, 5), (rows[1].0, 4), rows[2]], 2 * TOKENS as u32);
    (driver.delivered, count(&launched(&control), "wide_"))
}

/// What a cell needs, to a kibibyte.
pub(crate) fn least_budget(cell: &Arc<TypedCell>) -> u64 {
    (0..).step_by(1024).find(|bytes| with_budget(*bytes).0.load(CELL, cell).is_ok()).expect("it is not large")
}

#[test]
fn no_bit_depends_on_whether_there_is_a_table() {
    let narrow = Draft::new("narrow tokens").known("token", Int32, &[]);
    let narrow = cells::lstm_of_tokens(narrow, 13, &weights(8, 13)).at(Precision::Bf16).resolve();
    for cell in [lstm_of_tokens(UNITS), narrow] {
        let (without, products) = over_all_tokens(&cell, least_budget(&cell));
        assert!(products > 0, "there is no room for a table");
        let (with, products) = over_all_tokens(&cell, 1 << 20);
        assert_eq!(products, 0, "nothing is multiplied that is in the table");
        assert_eq!(without.len(), 3 * 2 * 2 * TOKENS);
        assert!(with == without, "`{}`", cell.name);
    }
}

#[test]
fn a_table_is_of_the_budget_and_goes_with_its_cell() {
    let load = |weight_bytes| {
        let (mut worker, control) = with_budget(weight_bytes);
        let (mut taken, mut told) = (Vec::new(), 0);
        for _ in 0..2 {
            worker.load(CELL, &lstm_of_tokens(UNITS)).expect("it fits");
            taken.push(control.allocated_bytes());
            told = worker.table(CELL).map_or(0, |table| table.bytes.load(Ordering::Relaxed));
            worker.unload(CELL);
            taken.push(control.allocated_bytes());
            assert!(worker.table(CELL).is_none());
        }
        assert_eq!(taken[..2], taken[2..], "what is unloaded leaves nothing");
        (taken[0] - taken[1], told)
    };
    // Of each token 4 gates of 16 units, if that is a quarter of what is left.
    let (least, table) = (least_budget(&lstm_of_tokens(UNITS)), TOKENS as u64 * 4 * UNITS as u64 * 4);
    let (without, _) = load(least);
    assert_eq!([load(least + 2 * table), load(least + 4 * table)], [(without, 0), (without + table, table)]);
}

/// What is read of a token elsewhere is computed for each row.
#[test]
fn a_table_holds_what_a_step_begins_with_and_nothing_else() {
    let embedded = cells::lstm_of_tokens(Draft::new("embedded").known("token", Int64, &[]), UNITS, &weights(8, UNITS));
    let embedded = embedded.output("x", Fp32, &[8]).at(Precision::Bf16).resolve();
    let (delivered, products) = over_all_tokens(&embedded, 1 << 20);
    assert!(products > 0 && delivered.len() == 3 * 3 * 2 * TOKENS);
    let moved = Draft::new("moved").known("token", Int64, &[]).weight(Tensor::from_i64("by", &[], &[0]));
    let moved = moved.operator("Add", &["token", "by"], &["index"]).weight(random("emb.weight", &[TOKENS, 4 * UNITS], 6));
    let moved = moved.operator("Gather", &["emb.weight", "index"], &["x"]).weight(random("w", &[4 * UNITS, 4 * UNITS], 7));
    let moved = moved.input("h", Fp32, &[UNITS]).input("c", Fp32, &[UNITS]).weight(random("u", &[UNITS, 4 * UNITS], 2));
    let moved = moved.operator("MatMul", &["x", "w"], &["of_x"]).operator("MatMul", &["h", "u"], &["of_h"]);
    let moved = states(split(moved.operator("Add", &["of_h", "of_x"], &["gates"]), ["i", "f", "g", "o"]));
    assert!(over_all_tokens(&moved.at(Precision::Bf16).resolve(), 1 << 20).1 > 0);
}
