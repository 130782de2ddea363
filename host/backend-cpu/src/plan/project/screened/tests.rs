//! That screens settle rows, and how many they leave; what is found is compared in `tests/suite/projections.rs`.

use std::sync::Mutex;
use std::time::Duration;

use cellwright_cell_graph::generate::Rng;
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{Datatype, Tensor, sums};
use cellwright_conformance::cells::Draft;

use super::super::super::{Frame, Plan, StepKind};
use super::*;
use crate::level::{Kernels, Level};
use crate::matrix::Packs;
use crate::team::Team;

const SHAPE: (usize, usize) = (96, 4100);

/// The largest of 4,100 products with random columns, each of which comes so many times, and the first of those or the last.
fn plan(precision: Precision, times: usize, is_last: bool) -> Plan {
    let (k, n) = SHAPE;
    let mut rng = Rng::new(51);
    let rows = (0..k).flat_map(|_| (0..n / times).map(|_| rng.float()).collect::<Vec<f32>>().repeat(times));
    let weight: Vec<f32> = rows.collect();
    let draft = Draft::new("best").input("x", Datatype::Fp32, &[k]).weight(Tensor::from_f32("w", &[k, n], &weight));
    let draft = draft.operator("MatMul", &["x", "w"], &["y"]).operator("ArgMax", &["y"], &["best"]).with("axis", 1);
    let draft = draft.with("select_last_index", i64::from(is_last));
    let cell = draft.output("best", Datatype::Int64, &[1]).at(precision).resolve();
    let how = (Level::detect(), Kernels::Best);
    Plan::compile((&cell, &sums::find(&cell)), how, &mut Packs::within(u64::MAX)).expect("it compiles")
}

fn screen(plan: &Plan) -> Option<&Screen> {
    let StepKind::Project(projection) = &plan.steps[0].kind else { panic!("one projection") };
    projection.screen.as_deref()
}

/// Runs rows, and says what is found of each.
fn run(plan: &Plan, rows: &[Vec<f32>], threads: usize) -> Vec<i64> {
    let mut frame = Frame::default();
    let memory = frame.prepare(plan, rows.len(), threads);
    let place = plan.inputs[0].place.expect("it is gathered");
    for (at, row) in rows.iter().enumerate() {
        // SAFETY: the frame has these rows, of so many floats.
        unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), memory.at(place, at).cast(), row.len()) };
    }
    let mut team = Team::new(threads, Duration::ZERO, None).expect("threads start");
    plan.run(memory, rows.len(), &mut team, &Mutex::default());
    // SAFETY: the frame has a result for each row.
    (0..rows.len()).map(|row| unsafe { *memory.at(plan.outputs[0].place, row).cast::<i64>() }).collect()
}

fn random(count: usize) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(52);
    (0..count).map(|_| (0..SHAPE.0).map(|_| rng.float()).collect()).collect()
}

#[test]
fn rows_are_settled_without_being_computed() {
    for precision in [Precision::F32, Precision::Bf16] {
        for threads in [1, 2] {
            let plan = plan(precision, 1, false);
            let Some(screen) = screen(&plan) else { return };
            for count in [1, 2, 13, 64] {
                let mut rows = random(count);
                // Elements of a row of zeros are the bias, whatever their number; one lost row of many is no reason to do without.
                rows[0] = vec![0.0; SHAPE.0];
                if count > 4 {
                    rows[count - 1][3] = f32::NAN;
                }
                let found = run(&plan, &rows, threads);
                assert!(screen.is_worth_it(), "{precision}, {count} rows, {threads} threads");
                assert_eq!(found[0], 0);
                // The same with every row lost.
                let many: Vec<Vec<f32>> = rows.iter().map(|row| row.iter().map(|number| number * 1e-20).collect()).collect();
                let computed = run(&plan, &many, threads);
                assert!(!screen.is_worth_it() || count == 1, "none of these is settled");
                while !screen.is_worth_it() {}
                if precision == Precision::F32 {
                    let settled = if count > 4 { count - 1 } else { count };
                    assert_eq!(found[..settled], computed[..settled], "{count} rows, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn of_columns_that_are_alike_the_product_computes_both() {
    for (precision, is_last) in [(Precision::F32, false), (Precision::F32, true), (Precision::Bf16, true)] {
        for threads in [1, 2] {
            let plan = plan(precision, 2, is_last);
            let Some(screen) = screen(&plan) else { return };
            for count in [1, 2, 13, 64] {
                let mut rows = random(count + 1);
                rows[count] = vec![0.0; SHAPE.0];
                let found = run(&plan, &rows, threads);
                assert!(screen.is_worth_it(), "{precision}, {count} rows, {threads} threads: all are settled");
                let half = SHAPE.1 as i64 / 2;
                assert!(found.iter().all(|column| (*column >= half) == is_last), "{found:?}");
                assert_eq!(found[count], if is_last { SHAPE.1 as i64 - 1 } else { 0 });
            }
        }
    }
}
