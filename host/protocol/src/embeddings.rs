//! `/v1/embeddings` in OpenAI's form: texts or tokens in, a list of embeddings out.
//!
//! What is not known is ignored, as everywhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cellwright_cell_graph::Tensor;
use serde::{Deserialize, Serialize};

use crate::{InferRequest, InferResponse};

/// Texts of a request, at most, as the original has it.
const INPUTS_MAX: usize = 2048;
/// Tokens of a request as they are padded, at most.
const TOKENS_MAX: usize = 1 << 22;

/// A request that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences say it")]
pub enum EmbeddingsFault {
    #[error("the body is no request for embeddings: {0}")]
    Json(String),
    #[error("`input` is empty")]
    NoInput,
    #[error("text {0} of `input` is empty")]
    EmptyText(usize),
    #[error("`input` has {count} texts, and a request has at most {INPUTS_MAX}")]
    TooMany { count: usize },
    #[error("`input` has {count} tokens as they are padded, and a request has at most {TOKENS_MAX}")]
    TooManyTokens { count: usize },
    #[error("`input` has tokens, and the model takes texts alone")]
    NoTokens,
    #[error("`dimensions` is {asked}, and the model's embeddings have {most}: it is from 1 to that")]
    Dimensions { asked: u32, most: usize },
    #[error("the model gave no `{0}` that is a row of floats for each text")]
    NoEmbedding(String),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct EmbeddingsRequest {
    /// The model's name.
    pub model: String,
    input: Inputs,
    #[serde(default)]
    encoding_format: Option<Format>,
    #[serde(default)]
    dimensions: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "`input` is a text, texts, tokens, or a list of them for each text")]
enum Inputs {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    TokensOfTexts(Vec<Vec<i64>>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

/// Names of a model's tensors for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingNames {
    /// Texts.
    pub text: String,
    /// Tokens, and which of them count, if the model takes them.
    pub tokens: Option<(String, String)>,
    /// A row for each text.
    pub embedding: String,
    /// Tokens of each text, if the model says how many.
    pub count: Option<String>,
}

/// How an answer is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingForm {
    model: String,
    format: Format,
    dimensions: Option<u32>,
}

impl EmbeddingsRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// If it is none.
    pub fn from_json(body: &[u8]) -> Result<Self, EmbeddingsFault> {
        serde_json::from_slice(body).map_err(|cause| EmbeddingsFault::Json(cause.to_string()))
    }

    /// What the model is asked, and how its answer is to be written.
    ///
    /// # Errors
    /// If the input is empty or too much, or has tokens that the model does not take.
    pub fn into_infer(self, names: &EmbeddingNames) -> Result<(InferRequest, EmbeddingForm), EmbeddingsFault> {
        let inputs = match self.input {
            Inputs::Text(text) => texts(&names.text, &[text])?,
            Inputs::Texts(all) => texts(&names.text, &all)?,
            Inputs::Tokens(tokens) => numbers(names, &[tokens])?,
            Inputs::TokensOfTexts(all) => numbers(names, &all)?,
        };
        let form = EmbeddingForm { model: self.model, format: self.encoding_format.unwrap_or_default(), dimensions: self.dimensions };
        Ok((InferRequest { inputs, ..InferRequest::default() }, form))
    }
}

fn check_count(count: usize) -> Result<(), EmbeddingsFault> {
    match count {
        0 => Err(EmbeddingsFault::NoInput),
        1..=INPUTS_MAX => Ok(()),
        count => Err(EmbeddingsFault::TooMany { count }),
    }
}

fn texts(name: &str, all: &[String]) -> Result<Vec<Tensor>, EmbeddingsFault> {
    check_count(all.len())?;
    match all.iter().position(String::is_empty) {
        Some(empty) => Err(EmbeddingsFault::EmptyText(empty)),
        None => Ok(vec![Tensor::from_texts(name, &[all.len()], all)]),
    }
}

/// Tokens of all texts, padded to the longest one.
fn numbers(names: &EmbeddingNames, all: &[Vec<i64>]) -> Result<Vec<Tensor>, EmbeddingsFault> {
    check_count(all.len())?;
    if let Some(empty) = all.iter().position(Vec::is_empty) {
        return Err(if all.len() == 1 { EmbeddingsFault::NoInput } else { EmbeddingsFault::EmptyText(empty) });
    }
    let (ids, mask) = names.tokens.as_ref().ok_or(EmbeddingsFault::NoTokens)?;
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    let (shape, count) = ([all.len(), longest], all.len().saturating_mul(longest));
    if count > TOKENS_MAX {
        return Err(EmbeddingsFault::TooManyTokens { count });
    }
    let padded = |of: &dyn Fn(&Vec<i64>, usize) -> i64| -> Vec<i64> {
        all.iter().flat_map(|tokens| (0..longest).map(|at| of(tokens, at))).collect()
    };
    let tokens = padded(&|tokens, at| tokens.get(at).copied().unwrap_or(0));
    let counts = padded(&|tokens, at| i64::from(at < tokens.len()));
    Ok(vec![Tensor::from_i64(ids, &shape, &tokens), Tensor::from_i64(mask, &shape, &counts)])
}

#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: Vec<Embedding>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Row,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: i64,
    total_tokens: i64,
}

impl EmbeddingForm {
    /// The answer as JSON.
    ///
    /// # Errors
    /// If the model's answer has no embeddings, or they have fewer elements than are asked for.
    pub fn write(&self, response: &InferResponse, names: &EmbeddingNames) -> Result<Vec<u8>, EmbeddingsFault> {
        let output = |name: &String| response.outputs.iter().find(|output| output.name == *name);
        let missing = || EmbeddingsFault::NoEmbedding(names.embedding.clone());
        let found = output(&names.embedding).ok_or_else(missing)?;
        let (values, width) = match found.shape[..] {
            [_, width] if width > 0 => (found.to_f32().ok_or_else(missing)?, width),
            _ => return Err(missing()),
        };
        let kept = match self.dimensions {
            None => width,
            Some(asked) => usize::try_from(asked)
                .ok()
                .filter(|kept| (1..=width).contains(kept))
                .ok_or(EmbeddingsFault::Dimensions { asked, most: width })?,
        };
        let data = values.chunks_exact(width).enumerate().map(|(index, row)| {
            let row = if kept < width { shortened(&row[..kept]) } else { row.to_vec() };
            Embedding { object: "embedding", index, embedding: self.row(row) }
        });
        let tokens = names.count.as_ref().and_then(output).and_then(Tensor::to_i64).map_or(0, |counts| counts.iter().sum());
        let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
        let answer = Answer { object: "list", data: data.collect(), model: &self.model, usage };
        serde_json::to_vec(&answer).map_err(|cause| EmbeddingsFault::Json(cause.to_string()))
    }

    fn row(&self, row: Vec<f32>) -> Row {
        match self.format {
            Format::Float => Row::Floats(row),
            Format::Base64 => Row::Base64(STANDARD.encode(row.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())),
        }
    }
}

/// The first elements of an embedding, made as long as 1 again.
fn shortened(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt();
    let factor = if length > 0.0 { 1.0 / length } else { 1.0 };
    row.iter().map(|value| (f64::from(*value) * factor) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> EmbeddingNames {
        let tokens = Some(("ids".to_owned(), "mask".to_owned()));
        EmbeddingNames { text: "text".to_owned(), tokens, embedding: "y".to_owned(), count: Some("n".to_owned()) }
    }

    fn read(body: &str) -> Result<(InferRequest, EmbeddingForm), String> {
        let request = EmbeddingsRequest::from_json(body.as_bytes()).and_then(|request| request.into_infer(&names()));
        request.map_err(|fault| fault.to_string())
    }

    #[test]
    fn every_form_of_input() {
        let inputs = |body: &str| read(body).unwrap().0.inputs;
        assert_eq!(inputs(r#"{"model":"m","input":"a"}"#), [Tensor::from_texts("text", &[1], &["a"])]);
        assert_eq!(inputs(r#"{"model":"m","input":["a","b"],"user":"u"}"#), [Tensor::from_texts("text", &[2], &["a", "b"])]);
        let ids = |shape: &[usize], ids: &[i64], mask: &[i64]| [Tensor::from_i64("ids", shape, ids), Tensor::from_i64("mask", shape, mask)];
        assert_eq!(inputs(r#"{"model":"m","input":[5,6]}"#), ids(&[1, 2], &[5, 6], &[1, 1]));
        assert_eq!(inputs(r#"{"model":"m","input":[[5],[6,7]]}"#), ids(&[2, 2], &[5, 0, 6, 7], &[1, 0, 1, 1]));
    }

    #[test]
    fn faults_have_sentences() {
        let refused = |body: &str| read(body).unwrap_err();
        assert_eq!(refused(r#"{"model":"m","input":[]}"#), "`input` is empty");
        assert_eq!(refused(r#"{"model":"m","input":["a",""]}"#), "text 1 of `input` is empty");
        assert!(refused(r#"{"model":"m","input":{"a":1}}"#).contains("`input` is a text, texts, tokens, or a list of them"));
        assert!(refused(r#"{"input":"a"}"#).contains("missing field `model`"));
        assert!(refused(r#"{"model":"m","input":"a","encoding_format":"hex"}"#).contains("unknown variant `hex`"));
        let many = format!(r#"{{"model":"m","input":{:?}}}"#, vec!["a"; 2049]);
        assert_eq!(refused(&many), "`input` has 2049 texts, and a request has at most 2048");
        let own = EmbeddingsRequest::from_json(br#"{"model":"m","input":[1]}"#).unwrap();
        let fault = own.into_infer(&EmbeddingNames { tokens: None, ..names() }).unwrap_err();
        assert_eq!(fault.to_string(), "`input` has tokens, and the model takes texts alone");
    }

    #[test]
    fn answers_have_floats_or_base64_and_may_be_shortened() {
        let outputs = vec![Tensor::from_f32("y", &[2, 2], &[3.0, 4.0, 0.0, 1.0]), Tensor::from_i64("n", &[2], &[7, 5])];
        let response = InferResponse { outputs, ..InferResponse::default() };
        let written = |more: &str| {
            let (_, form) = read(&format!(r#"{{"model":"m","input":["a","b"]{more}}}"#)).unwrap();
            form.write(&response, &names()).map(|json| String::from_utf8(json).unwrap()).map_err(|fault| fault.to_string())
        };
        let wanted = concat!(
            r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[3.0,4.0]},"#,
            r#"{"object":"embedding","index":1,"embedding":[0.0,1.0]}],"model":"m","usage":{"prompt_tokens":12,"total_tokens":12}}"#
        );
        assert_eq!(written("").unwrap(), wanted);
        assert!(written(r#","encoding_format":"base64""#).unwrap().contains(r#""embedding":"AABAQAAAgEA=""#));
        assert!(written(r#","dimensions":1"#).unwrap().contains(r#""embedding":[1.0]"#));
        assert_eq!(
            written(r#","dimensions":3"#).unwrap_err(),
            "`dimensions` is 3, and the model's embeddings have 2: it is from 1 to that"
        );
        assert!(written(r#","dimensions":0"#).is_err());
    }
}
