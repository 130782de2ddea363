//! Descriptions: what is refused before any cell runs.

use crate::cell::{Description, TensorSpec};
use crate::check::Model;
use crate::datatype::Datatype;
use crate::generate::{self, ModelShape, Rng};
use crate::resolve::{CellLimits, ResolveContext};
use crate::typed::Precision;

const SHAPE: ModelShape = ModelShape { width: 2, hidden: 2, vocabulary: 4, spans: false };

fn resolve(change: impl FnOnce(&mut Description)) -> Result<Model, String> {
    let mut description = generate::description(SHAPE);
    change(&mut description);
    let weights = generate::weights(SHAPE, &mut Rng::new(1));
    let context =
        ResolveContext { weights: &weights, precision: Precision::F32, tenant: "t", limits: CellLimits::default(), may_copy: &|_| true };
    Model::resolve(description, &context).map_err(|error| error.to_string())
}

#[test]
fn descriptions() {
    let refused = |change: fn(&mut Description)| resolve(change).map(|_| ()).unwrap_err();
    let table = [
        (refused(|model| model.cells.clear()), "the model describes 0 cells, but must have 1 to 256"),
        (refused(|model| model.inputs.clear()), "the model describes 0 input tensors, but must have 1 to 256"),
        (
            refused(|model| model.outputs = vec![model.outputs[0].clone(); 257]),
            "the model describes 257 output tensors, but must have 1 to 256",
        ),
        (refused(|model| model.outputs[1].name = "last".to_owned()), "two output tensors are called `last`"),
        (refused(|model| model.cells[1].name = "lstm".to_owned()), "two cells are called `lstm`"),
        (refused(|model| model.inputs[0].name.clear()), "one of the input tensors has no name"),
        (
            refused(|model| model.cells[1].name = "é".repeat(129)),
            &*format!("the name `{}…` of one of the cells has 258 bytes, more than the limit of 256", "é".repeat(80)),
        ),
        (
            refused(|model| model.outputs[0].name = "a\u{1b}[2J".to_owned()),
            r#"the name "a\u{1b}[2J" of one of the output tensors has a character that controls the text or its direction"#,
        ),
        (
            refused(|model| model.cells[0].name = "a\u{202e}b".to_owned()),
            r#"the name "a\u{202e}b" of one of the cells has a character that controls the text or its direction"#,
        ),
        (refused(|model| model.inputs[0].shape = vec![1; 17]), "tensor `x` has 17 dimensions, more than the limit of 16"),
        (refused(|model| model.inputs[0].shape[0] = -2), "tensor `x` has an extent of -2; an extent is -1 (any) or at least 0"),
        (refused(|model| model.cells[1].batch_max = Some(0)), "cell `stacked` has a `batch-max` of 0, so that it could never run"),
        (refused(|model| model.optional_inputs = vec!["y".to_owned()]), "the optional input `y` is no input of the model"),
        (refused(|model| model.live_max = Some(0)), "`live-max` is 0, so that no request could hold a value"),
        (
            refused(|model| {
                model.rows_are_requests = true;
                model.inputs.push(TensorSpec { name: "scalar".to_owned(), datatype: Datatype::Fp32, shape: vec![] });
            }),
            "input tensor `scalar` has no leading dimension, which `rows-are-requests` counts",
        ),
        (
            refused(|model| model.cells[4].outputs[0].shape[0] = 9),
            "cell `head`: output `logits` is declared with rows of shape [9], but its operators give [4]",
        ),
    ];
    for (given, wanted) in table {
        assert_eq!(given, wanted);
    }
}

#[test]
fn cells_with_equal_bodies_and_weights_are_of_one_type() {
    let model = resolve(|model| {
        let mut again = model.cells[0].clone();
        again.name = "again".to_owned();
        model.cells.push(again);
    });
    let cells = model.unwrap().cells;
    assert_eq!(cells[0].key, cells.last().unwrap().key);
    let keys: std::collections::BTreeSet<_> = cells.iter().map(|cell| cell.key).collect();
    assert_eq!(keys.len(), cells.len() - 1, "other cells are of other types");
}
