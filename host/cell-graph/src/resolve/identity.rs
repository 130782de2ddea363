//! A cell type's identity: a hash of everything that decides what a cell computes, and of whose it is. Names do not, so they are left out.

use std::io::{self, Write};

use serde::Serialize;

use crate::datatype::Datatype;
use crate::typed::{CellTypeKey, Compute, Origin, Precision, TypedCell, ValueId};

/// Raised whenever the canonical form, or the meaning of anything in it, changes.
const FORM: u32 = 2;

#[derive(Serialize)]
struct Canonical<'a> {
    form: u32,
    tenant: &'a str,
    precision: Precision,
    inputs: Vec<CanonicalPort<'a>>,
    outputs: Vec<ValueId>,
    values: Vec<CanonicalValue<'a>>,
    operations: Vec<(&'a Compute, &'a [ValueId], &'a [ValueId])>,
}

#[derive(Serialize)]
struct CanonicalPort<'a> {
    datatype: Datatype,
    shape: &'a [u32],
    ragged: bool,
    carried: bool,
}

#[derive(Serialize)]
struct CanonicalValue<'a> {
    datatype: Datatype,
    shape: &'a [usize],
    batched: bool,
    span: Option<u32>,
    contents: Option<[u8; 32]>,
}

/// The identity of a resolved and pruned cell.
///
/// # Panics
/// Never: the form has no map, no sequence of unknown length and no float key, and the hasher takes every byte.
pub(super) fn key(cell: &TypedCell, tenant: &str) -> CellTypeKey {
    let canonical = Canonical {
        form: FORM,
        tenant,
        precision: cell.precision,
        inputs: cell
            .inputs
            .iter()
            .map(|port| CanonicalPort { datatype: port.datatype, shape: &port.shape, ragged: port.ragged, carried: port.carried })
            .collect(),
        outputs: cell.outputs.iter().map(|output| output.value).collect(),
        values: cell
            .values
            .iter()
            .map(|value| {
                let contents = match &value.origin {
                    Origin::Constant(tensor) => Some(*blake3::hash(&tensor.data).as_bytes()),
                    Origin::Input(_) | Origin::Operation(_) => None,
                };
                CanonicalValue { datatype: value.datatype, shape: &value.shape, batched: value.batched, span: value.span, contents }
            })
            .collect(),
        operations: cell
            .operations
            .iter()
            .map(|operation| (&operation.compute, operation.operands.as_slice(), operation.results.as_slice()))
            .collect(),
    };
    let mut hasher = Hasher(blake3::Hasher::new());
    #[expect(clippy::expect_used, reason = "see above")]
    bincode::serialize_into(&mut hasher, &canonical).expect("the canonical form can always be written to a hasher");
    CellTypeKey(*hasher.0.finalize().as_bytes())
}

struct Hasher(blake3::Hasher);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
