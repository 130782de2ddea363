//! Products of which only the best few results are read: a device need not write the others down, and must find the same.

use super::{Case, Draft, Fp32, Inputs, Int64, Rng, Tensor, add};

/// Columns that come twice and more often, so that there are ties; rows that are NaN, or have infinities, tie everywhere.
pub(super) fn projections(cases: &mut Vec<Case>, rng: &mut Rng) {
    for (k, n) in [(3, 1), (9, 5), (12, 47), (21, 97), (40, 330), (130, 700)] {
        let scores = |name: &str, rng: &mut Rng| {
            let different = n / 2 + 1;
            let column: Vec<usize> = (0..n).map(|_| rng.below(different as u64) as usize).collect();
            let own: Vec<f32> = (0..different * (k + 1)).map(|_| rng.float()).collect();
            let w: Vec<f32> = (0..k).flat_map(|row| column.iter().map(|of| own[row * different + of]).collect::<Vec<_>>()).collect();
            let b: Vec<f32> = column.iter().map(|of| own[k * different + of]).collect();
            Draft::new(&format!("{name} of {k} × {n}"))
                .input("x", Fp32, &[k])
                .weight(Tensor::from_f32("w", &[k, n], &w))
                .weight(Tensor::from_f32("b", &[n], &b))
        };
        for last in [0, 1] {
            let draft = scores("the best score", rng).operator("Gemm", &["x", "w", "b"], &["y"]);
            let draft = draft.operator("ArgMax", &["y"], &["best"]).with("axis", -1).with("keepdims", 0).with("select_last_index", last);
            add(cases, draft.output("best", Int64, &[]), Inputs::Special, 1.0);
            let draft = scores("the best score, reshaped", rng).operator("MatMul", &["x", "w"], &["product"]);
            let draft = draft.operator("Add", &["product", "b"], &["sum"]).operator("Reshape", &["sum"], &["y"]);
            let draft = draft.with("shape", [0, 1, n as i64].as_slice());
            let draft = draft.operator("ArgMax", &["y"], &["best"]).with("axis", 2).with("select_last_index", last);
            add(cases, draft.output("best", Int64, &[1, 1]), Inputs::Special, 1.0);
        }
        for (kept, largest) in [(1, 1), (4, 1), (4, 0), (11, 1), (80, 1)] {
            let kept = kept.min(n);
            let draft = scores(&format!("the first {kept} scores, largest {largest}"), rng).operator("MatMul", &["x", "w"], &["y"]);
            let draft =
                draft.operator("TopK", &["y"], &["values", "places"]).with("k", kept as i64).with("axis", -1).with("largest", largest);
            add(cases, draft.output("values", Fp32, &[kept]).output("places", Int64, &[kept]), Inputs::Special, 10.0 + k as f64);
        }
    }
}
