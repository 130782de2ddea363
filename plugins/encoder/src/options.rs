//! The folder's files: what the model is, and what becomes of its states.

use cellwright_guest::prelude::*;
use cellwright_guest::{BundleWeights, CellBuilder, Value};
use serde::Deserialize;

use crate::tokens::Tokens;

/// `config.json` of the model.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Config {
    model_type: String,
    pub(crate) hidden_size: u32,
    intermediate_size: u32,
    pub(crate) num_attention_heads: u32,
    pub(crate) num_hidden_layers: u32,
    max_position_embeddings: u32,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default = "epsilon")]
    pub(crate) layer_norm_eps: f64,
    #[serde(default = "absolute")]
    position_embedding_type: String,
}

fn gelu() -> String {
    "gelu".into()
}

const fn epsilon() -> f64 {
    1e-12
}

fn absolute() -> String {
    "absolute".into()
}

/// What is between a token's two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Silu,
}

impl Activation {
    pub(crate) fn apply(self, cell: &mut CellBuilder, x: Value) -> Value {
        match self {
            Self::Gelu => cell.gelu(x),
            Self::GeluTanh => cell.gelu_tanh(x),
            Self::Relu => cell.relu(x),
            Self::Silu => cell.silu(x),
        }
    }
}

/// What becomes of all tokens' states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// Their mean.
    Mean,
    /// The largest of each element.
    Max,
    /// That of the first token.
    First,
}

impl Pooling {
    const WORDS: [(&str, Self); 3] = [("mean", Self::Mean), ("max", Self::Max), ("cls", Self::First)];
}

/// Everything that is known of the model.
pub(crate) struct Options {
    pub(crate) config: Config,
    pub(crate) activation: Activation,
    pub(crate) pooling: Vec<Pooling>,
    pub(crate) normalize: bool,
    pub(crate) tokens: Tokens,
    /// Tokens of a text at most, those that stand for its ends included.
    pub(crate) length_max: u32,
    pub(crate) truncate: bool,
    /// In front of all weights' names.
    pub(crate) prefix: &'static str,
    /// Tokens that have an embedding.
    pub(crate) vocabulary: u64,
    pub(crate) output: String,
}

/// More layers than any model has.
const LAYERS_MAX: u32 = 128;

/// A module of sentence-transformers.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Options {
    pub(crate) fn read(parameters: &Parameters, bundle: &Bundle) -> Result<Self, Refusal> {
        let config: Config = json(bundle, "config.json")?;
        let activation = config.check()?;
        let (mut pooling, mut normalize) = (Vec::new(), false);
        let mut length_max = config.max_position_embeddings;
        if let Ok(modules) = bundle.text("modules.json") {
            (pooling, normalize) = modules_of(bundle, &modules)?;
        }
        if let Ok(text) = bundle.text("sentence_bert_config.json") {
            let limit: serde_json::Value = parsed("sentence_bert_config.json", &text)?;
            let limit = limit.get("max_seq_length").and_then(serde_json::Value::as_u64);
            length_max = limit.and_then(|limit| u32::try_from(limit).ok()).map_or(length_max, |limit| limit.min(length_max));
        }
        if parameters.has("pooling") {
            pooling = vec![parameters.choice("pooling", &Pooling::WORDS)?];
        }
        if pooling.is_empty() {
            pooling = vec![Pooling::Mean];
        }
        normalize = parameters.truth_or("normalize", normalize)?;
        length_max = parameters.positive_or("max_length", length_max)?;
        if length_max > config.max_position_embeddings || length_max < 3 {
            let most = config.max_position_embeddings;
            return Err(Parameters::refusal("max_length", format!("must be from 3 to {most}, the model's positions; it is {length_max}")));
        }
        let truncate = parameters.truth_or("truncate", true)?;
        let output = parameters.text_or("output", "embedding")?.into();
        parameters.refuse_unknown()?;
        let (prefix, vocabulary) = table(&bundle.weights())?;
        let tokens = Tokens::read(bundle)?;
        Ok(Self { config, activation, pooling, normalize, tokens, length_max, truncate, prefix, vocabulary, output })
    }

    /// Elements of an embedding.
    pub(crate) fn width(&self) -> u32 {
        self.config.hidden_size * self.pooling.len() as u32
    }
}

impl Config {
    fn check(&self) -> Result<Activation, Refusal> {
        let refused = |key: &str, sentence: String| Err(Refusal::InvalidInput(format!("`{key}` of config.json {sentence}")));
        if self.model_type != "bert" {
            return refused("model_type", format!("is \"{}\", and this plugin serves \"bert\"", self.model_type));
        }
        if self.position_embedding_type != "absolute" {
            return refused(
                "position_embedding_type",
                format!("is \"{}\", and this plugin has \"absolute\"", self.position_embedding_type),
            );
        }
        if self.num_hidden_layers == 0 || self.num_hidden_layers > LAYERS_MAX {
            return refused("num_hidden_layers", format!("must be from 1 to {LAYERS_MAX}, it is {}", self.num_hidden_layers));
        }
        if self.num_attention_heads == 0 || self.hidden_size == 0 || !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return refused(
                "num_attention_heads",
                format!("must divide `hidden_size` ({}), it is {}", self.hidden_size, self.num_attention_heads),
            );
        }
        if self.intermediate_size == 0 {
            return refused("intermediate_size", "is 0".into());
        }
        match self.hidden_act.as_str() {
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            "silu" | "swish" => Ok(Activation::Silu),
            other => refused("hidden_act", format!("is \"{other}\", and this plugin has gelu, gelu_new, relu and silu")),
        }
    }
}

fn parsed<T: for<'a> Deserialize<'a>>(path: &str, text: &str) -> Result<T, Refusal> {
    serde_json::from_str(text).map_err(|cause| Refusal::InvalidInput(format!("file `{path}`: {cause}")))
}

fn json<T: for<'a> Deserialize<'a>>(bundle: &Bundle, path: &str) -> Result<T, Refusal> {
    parsed(path, &bundle.text(path)?)
}

/// What sentence-transformers' modules do behind the model.
fn modules_of(bundle: &Bundle, text: &str) -> Result<(Vec<Pooling>, bool), Refusal> {
    let modules: Vec<Module> = parsed("modules.json", text)?;
    let (mut pooling, mut normalize) = (Vec::new(), false);
    for (position, module) in modules.iter().enumerate() {
        match (position, module.kind.rsplit('.').next().unwrap_or_default()) {
            (0, "Transformer") => {}
            (1, "Pooling") => pooling = pooling_of(bundle, &format!("{}/config.json", module.path))?,
            (2, "Normalize") => normalize = true,
            (_, kind) => {
                let sentence = format!(
                    "modules.json has the module {kind} at place {position}; this plugin has Transformer, Pooling and Normalize, in this order"
                );
                return Err(Refusal::InvalidInput(sentence));
            }
        }
    }
    Ok((pooling, normalize))
}

fn pooling_of(bundle: &Bundle, path: &str) -> Result<Vec<Pooling>, Refusal> {
    let config: serde_json::Map<String, serde_json::Value> = json(bundle, path)?;
    let is_on = |key: &str| config.get(key).and_then(serde_json::Value::as_bool).unwrap_or(false);
    // In the order in which sentence-transformers puts them side by side.
    let known = [("cls_token", Pooling::First), ("max_tokens", Pooling::Max), ("mean_tokens", Pooling::Mean)];
    let found: Vec<Pooling> =
        known.into_iter().filter(|(word, _)| is_on(&format!("pooling_mode_{word}"))).map(|(_, pooling)| pooling).collect();
    let other = config.keys().find(|key| {
        let word = key.strip_prefix("pooling_mode_");
        word.is_some_and(|word| !known.iter().any(|(known, _)| *known == word)) && is_on(key)
    });
    match other {
        Some(key) => Err(Refusal::InvalidInput(format!("file `{path}` asks for `{key}`; this plugin has cls, max and mean"))),
        None if found.is_empty() => Err(Refusal::InvalidInput(format!("file `{path}` asks for no pooling"))),
        None => Ok(found),
    }
}

/// What stands in front of all weights' names, because some checkpoints hold more than the encoder, and the rows of the table of tokens.
fn table(weights: &BundleWeights) -> Result<(&'static str, u64), Refusal> {
    const TABLE: &str = "embeddings.word_embeddings.weight";
    let rows = |prefix| Some((prefix, *weights.shape(&format!("{prefix}{TABLE}"))?.first()?));
    let found = ["", "bert."].into_iter().find_map(rows);
    found.ok_or_else(|| Refusal::InvalidInput(format!("there is no weight `{TABLE}`, nor one of that name behind `bert.`")))
}
