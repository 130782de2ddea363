//! Which projections keep candidates, and what room that saves.

use cellwright_cell_graph::Datatype::{Fp32, Int64};
use cellwright_cell_graph::Tensor;
use cellwright_cell_graph::typed::Precision;
use cellwright_conformance::cells::Draft;

use super::super::tests::{compiled, told};
use super::super::{ALIGNMENT, Step};
use super::*;

/// Scores of so many columns, and what is read of them.
fn scores(columns: usize, read: impl FnOnce(Draft) -> Draft) -> Draft {
    let weight = Tensor::from_f32("w", &[6, columns], &vec![0.5; 6 * columns]);
    read(Draft::new("scores").input("x", Fp32, &[6]).weight(weight).operator("MatMul", &["x", "w"], &["y"]))
}

fn steps(draft: Draft) -> Vec<String> {
    told(&compiled(draft))
}

fn best(draft: Draft) -> Draft {
    draft.operator("ArgMax", &["y"], &["z"]).with("axis", 1).with("keepdims", 0).output("z", Int64, &[])
}

fn first(kept: usize) -> impl FnOnce(Draft) -> Draft {
    move |draft: Draft| {
        let draft = draft.operator("TopK", &["y"], &["few", "at"]).with("axis", 1).with("k", kept as i64);
        draft.output("few", Fp32, &[kept]).output("at", Int64, &[kept])
    }
}

const FOLDED: [&str; 2] = ["product of 1 terms, the best", "best"];
const APART: [&str; 2] = ["product of 1 terms", "TOP"];

#[test]
fn scores_of_which_the_best_are_read_are_not_written_down() {
    assert_eq!(steps(scores(900, best).at(Precision::F32)), FOLDED);
    for precision in [Precision::F16, Precision::Bf16] {
        assert_eq!(steps(scores(900, best).at(precision)), ["CAST", FOLDED[0], FOLDED[1]], "warpgroups multiply rows that are rounded");
    }
    assert_eq!([steps(scores(900, first(1))), steps(scores(900, first(16)))], [FOLDED, FOLDED]);
    assert_eq!(steps(scores(900, first(17))), APART, "too many of a panel");
    assert_eq!([steps(scores(64, best)), steps(scores(65, best))], [APART, FOLDED], "a panel needs nobody to compare it with");
    let reshaped = |shape: [i64; 3], axis: i64, of: usize| {
        let read = move |draft: Draft| {
            let draft = draft.operator("Reshape", &["y"], &["f"]).with("shape", shape.as_slice());
            draft.operator("ArgMax", &["f"], &["z"]).with("axis", axis).with("keepdims", 0).output("z", Int64, &[of])
        };
        steps(scores(900, read))
    };
    assert_eq!(reshaped([0, 1, 900], 2, 1), FOLDED);
    assert_eq!(reshaped([0, 900, 1], 1, 1), FOLDED);
    assert_eq!(reshaped([0, 30, 30], 2, 30), APART, "the best of each thirty");
}

#[test]
fn scores_that_somebody_else_reads_are_written_down() {
    assert_eq!(steps(scores(900, |draft| best(draft).output("y", Fp32, &[900]))), APART);
    assert_eq!(steps(scores(900, |draft| best(first(2)(draft)))), ["product of 1 terms", "TOP TOP"]);
    let soft = |draft: Draft| draft.operator("Softmax", &["y"], &["s"]).with("axis", 1).operator("ArgMax", &["s"], &["z"]).with("axis", 1);
    let soft = scores(900, |draft| soft(draft).with("keepdims", 0).output("z", Int64, &[]));
    assert_eq!(steps(soft), ["product of 1 terms", "SOFTMAX |TOP"], "not of scores, but of what was made of them");
    let flat = |draft: Draft| best(draft.operator("Reshape", &["y"], &["f"]).with("shape", [0, 900].as_slice())).output("f", Fp32, &[900]);
    assert_eq!(steps(scores(900, flat)), APART, "read by another name");
    // A row that is not known before is added to a product element by element.
    let weight = Tensor::from_f32("w", &[6, 900], &vec![0.5; 5400]);
    let draft = Draft::new("summand").input("x", Fp32, &[6]).input("r", Fp32, &[1]).weight(weight);
    let draft = best(draft.operator("Tanh", &["r"], &["t"]).operator("Gemm", &["x", "w", "t"], &["y"]));
    assert_eq!(steps(draft), ["TANH", "product of 1 terms", "ADD |TOP"]);
}

#[test]
fn a_frame_has_room_for_candidates_and_not_for_scores() {
    let whole = compiled(scores(30_000, |draft| best(draft).output("y", Fp32, &[30_000])));
    let plan = compiled(scores(30_000, best));
    let candidates = 469 * 8_usize;
    assert_eq!(whole.stride - plan.stride, 30_000 * 4 - candidates.next_multiple_of(ALIGNMENT));
    let [Step::Product(product), Step::Best(found)] = &plan.steps[..] else { panic!("{:?}", told(&plan)) };
    assert_eq!((product.y, product.kept), (found.candidates, Some(Kept { k: 1, flags: 0 })));
    assert_eq!((found.panels, found.values, found.positions), (469, None, plan.outlets[0].place as usize));
    assert!(found.positions >= found.candidates + candidates, "nothing lies where candidates do");
}

#[test]
fn the_best_wait_for_their_product_and_what_follows_for_them() {
    let square = Tensor::from_f32("u", &[6, 6], &[0.5; 36]);
    let weight = Tensor::from_f32("w", &[6, 900], &[0.5; 5400]);
    let draft = Draft::new("two products").input("x", Fp32, &[6]).weight(square).weight(weight);
    let draft = draft.operator("MatMul", &["x", "u"], &["a"]).operator("Tanh", &["a"], &["t"]).operator("MatMul", &["t", "w"], &["y"]);
    let draft = draft.operator("ArgMax", &["y"], &["z"]).with("axis", 1).with("keepdims", 0).with("select_last_index", 1);
    let plan = compiled(draft.operator("Neg", &["z"], &["n"]).output("n", Int64, &[]));
    assert_eq!(told(&plan), ["product of 1 terms", "TANH", "product of 1 terms, the best", "best", "NEG"]);
    assert!(matches!(&plan.steps[3], Step::Best(found) if found.kept == Kept { k: 1, flags: flag::LAST }));
}
