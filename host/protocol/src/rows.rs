//! Calls whose rows are requests: one call taken apart into a request per row, their answers put together again.
//!
//! A model that says `rows-are-requests` counts independent requests by the leading dimension of every input. Each of them sees its inputs without that
//! dimension, and their outputs are stacked along a new one.

use cellwright_cell_graph::{Attribute, AttributeValue, Datatype, Tensor};

use crate::fault::RowsFault;
use crate::request::InferRequest;
use crate::response::InferResponse;

/// All rows of a call together may take so many bytes beside their data: each holds a copy of the call's parameters, and of its tensors' names and shapes.
const BESIDE_BYTES_MAX: usize = 32 << 20;
/// What a name costs beside its bytes, about.
const NAMED_BYTES: usize = 64;

/// One request for each row of the inputs, all with the call's parameters and requested outputs. Its id is the call's alone.
///
/// # Errors
/// If the inputs do not have the same number of rows, or there are none, or more than `rows_max`, or they would take too much memory beside their data.
pub fn split_rows(request: &InferRequest, rows_max: usize) -> Result<Vec<InferRequest>, RowsFault> {
    let rows = count_rows(&request.inputs)?;
    if rows == 0 {
        return Err(RowsFault::Empty);
    }
    if rows > rows_max {
        return Err(RowsFault::TooMany { found: rows, bound: rows_max });
    }
    let each = beside(request);
    if each.saturating_mul(rows) > BESIDE_BYTES_MAX {
        return Err(RowsFault::Beside { found: rows, each, bound: BESIDE_BYTES_MAX });
    }
    let empty = InferRequest { id: None, parameters: request.parameters.clone(), inputs: Vec::new(), outputs: request.outputs.clone() };
    let mut requests = vec![empty; rows];
    for input in &request.inputs {
        let inconsistent = || RowsFault::Inconsistent { input: input.name.clone() };
        let pieces = split_data(input, rows).ok_or_else(inconsistent)?;
        for (request, data) in requests.iter_mut().zip(pieces) {
            let shape = input.shape.iter().skip(1).copied().collect();
            request.inputs.push(Tensor { name: input.name.clone(), datatype: input.datatype, shape, data });
        }
    }
    Ok(requests)
}

/// The call's response, from the responses of its rows in order.
///
/// # Errors
/// If there are none, or if they differ in their outputs' names, datatypes or shapes.
pub fn join_rows(responses: Vec<InferResponse>) -> Result<InferResponse, RowsFault> {
    let rows = responses.len();
    let mut responses = responses.into_iter();
    let mut joined = responses.next().ok_or(RowsFault::Empty)?;
    for (row, response) in responses.enumerate().map(|(position, response)| (position + 1, response)) {
        if response.outputs.len() != joined.outputs.len() {
            return Err(RowsFault::Answers { row, what: format!("{} and {} outputs", joined.outputs.len(), response.outputs.len()) });
        }
        for (whole, piece) in joined.outputs.iter_mut().zip(response.outputs) {
            if (&whole.name, whole.datatype, &whole.shape) != (&piece.name, piece.datatype, &piece.shape) {
                let what = format!(
                    "`{}` {} {:?} and `{}` {} {:?}",
                    whole.name, whole.datatype, whole.shape, piece.name, piece.datatype, piece.shape
                );
                return Err(RowsFault::Answers { row, what });
            }
            whole.data.extend_from_slice(&piece.data);
        }
    }
    for output in &mut joined.outputs {
        output.shape.insert(0, rows);
    }
    Ok(joined)
}

/// What a row's request takes beside its data, about.
fn beside(request: &InferRequest) -> usize {
    let named = |name: &str| NAMED_BYTES + name.len();
    let parameters = |parameters: &[Attribute]| -> usize {
        let bytes = |value: &AttributeValue| if let AttributeValue::Text(text) = value { text.len() } else { 0 };
        parameters.iter().map(|parameter| named(&parameter.name) + bytes(&parameter.value)).sum()
    };
    let inputs = request.inputs.iter().map(|input| named(&input.name) + size_of_val(&input.shape[..]));
    let outputs = request.outputs.iter().map(|output| named(&output.name) + parameters(&output.parameters));
    parameters(&request.parameters) + inputs.chain(outputs).sum::<usize>()
}

fn count_rows(inputs: &[Tensor]) -> Result<usize, RowsFault> {
    let mut rows: Option<(usize, &str)> = None;
    for input in inputs {
        let found = *input.shape.first().ok_or_else(|| RowsFault::Scalar { input: input.name.clone() })?;
        let (expected, other) = *rows.get_or_insert((found, &input.name));
        if found != expected {
            return Err(RowsFault::Counts { input: input.name.clone(), found, other: other.to_owned(), expected });
        }
    }
    Ok(rows.map_or(0, |(rows, _)| rows))
}

/// The data of each row; none if the tensor is not consistent.
fn split_data(input: &Tensor, rows: usize) -> Option<Vec<Vec<u8>>> {
    if !input.is_consistent() {
        return None;
    }
    let elements = input.elements()?.checked_div(rows)?;
    if input.datatype != Datatype::Bytes {
        let bytes = elements.checked_mul(input.datatype.size()?)?;
        let piece = |row: usize| input.data.get(row * bytes..(row + 1) * bytes).map(<[u8]>::to_vec);
        return (0..rows).map(piece).collect();
    }
    let texts = input.texts()?;
    let piece = |row: usize| texts.get(row * elements..(row + 1) * elements).map(|texts| Tensor::from_texts("", &[], texts).data);
    (0..rows).map(piece).collect()
}
