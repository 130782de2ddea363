//! The same groups of operations by a compiler's kernels and by the program's own interpreter: bit by bit the same.

use cellwright_backend_cuda::CudaWorker;
use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::hoisting;
use serde_json::{Value, json};

use super::parts::small;
use super::{Groups, Where};

/// Rows of a task and steps of one, at most.
const MOST: (u64, u32) = (hoisting::REQUESTS as u64, 9);

/// A group without an instruction.
const NOTHING: &str = "#include \"group_stretches.cuh\"\n\nextern \"C\" __global__ void compiled_group(const __grid_constant__ CompiledGroupArguments a) {}\n";

/// All that chains of many kinds of cells deliver. Where the device has no compiler there is nothing to compare: the figures say so.
pub(crate) fn both_ways(place: Where, precision: Precision) -> Value {
    let open = |groups| place.open_with(groups).unwrap_or_else(|why| panic!("{why}"));
    let compiler = match open(Groups::Compiled).compiler() {
        Ok(compiler) => compiler.name().to_owned(),
        Err(why) => return json!({ "left_out": format!("there is no compiler: {why}") }),
    };
    let taken = open(Groups::Compiled).compiled(NOTHING).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(taken.is_some(), "{compiler} takes no group at all, so that there is nothing to compare");
    let mut cells = hoisting::recurrent_cells(precision);
    if matches!(place, Where::Emulated) {
        // Each group takes the CPU's compiler a second or two.
        cells.truncate(3);
    }
    for recurrent in &cells {
        let delivered = |groups| {
            let worker = || CudaWorker::new(open(groups), small()).unwrap_or_else(|fault| panic!("no worker: {fault}"));
            hoisting::deliveries(&mut || Box::new(worker()), (recurrent, hoisting::REQUESTS), MOST, &mut Rng::new(3))
        };
        let compiled = delivered(Groups::Compiled);
        assert!(!compiled.is_empty(), "cell `{}`: nothing was delivered", recurrent.cell.name);
        assert!(
            compiled == delivered(Groups::Interpreted),
            "cell `{}`: groups compiled by {compiler} give other bits",
            recurrent.cell.name
        );
    }
    json!({ "compiler": compiler, "cells": cells.len() })
}
