//! Texts to tokens, as the folder's own tokenizer makes them.

use cellwright_guest::prelude::*;
use serde_json::Value;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, Tokenizer};

/// A tokenizer without limits of its own.
pub(crate) struct Tokens {
    tokenizer: Tokenizer,
}

impl Tokens {
    /// Reads `tokenizer.json`, or else `vocab.txt` as a vocabulary of word pieces.
    pub(crate) fn read(bundle: &Bundle) -> Result<Self, Refusal> {
        let mut tokenizer = match bundle.read("tokenizer.json") {
            Ok(bytes) => Tokenizer::from_bytes(bytes).map_err(|cause| wrong("tokenizer.json", &cause))?,
            Err(_) => word_pieces(bundle)?,
        };
        // Texts are cut where the model says, and never padded.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|cause| wrong("tokenizer.json", &cause))?;
        Ok(Self { tokenizer })
    }

    /// A text's tokens with those that stand for its ends.
    pub(crate) fn of(&self, text: &str) -> Result<Vec<u32>, Refusal> {
        let encoded = self.tokenizer.encode_fast(text, true);
        let encoded = encoded.map_err(|cause| Refusal::InvalidInput(format!("a text cannot be cut into tokens: {cause}")))?;
        Ok(encoded.get_ids().to_vec())
    }
}

fn wrong(path: &str, cause: &dyn std::fmt::Display) -> Refusal {
    Refusal::InvalidInput(format!("file `{path}`: {cause}"))
}

/// As `BertTokenizerFast` is of a `vocab.txt` and the `tokenizer_config.json` beside it.
fn word_pieces(bundle: &Bundle) -> Result<Tokenizer, Refusal> {
    let text = bundle.text("vocab.txt").map_err(|_| Refusal::InvalidInput("there is neither `tokenizer.json` nor `vocab.txt`".into()))?;
    let config: Value = bundle.text("tokenizer_config.json").ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let truth = |key: &str| config.get(key).and_then(Value::as_bool);
    let words: serde_json::Map<String, Value> =
        text.lines().map(|word| word.trim_end().to_owned()).zip((0_u32..).map(Value::from)).collect();
    let form = serde_json::json!({
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": words,
    });
    // It reads borrowed strings.
    let model: WordPiece = serde_json::from_str(&form.to_string()).map_err(|cause| wrong("vocab.txt", &cause))?;
    let number = |word: &str| {
        let found = tokenizers::Model::token_to_id(&model, word);
        found.ok_or_else(|| Refusal::InvalidInput(format!("file `vocab.txt` has no `{word}`")))
    };
    let ends = ["[CLS]", "[SEP]"].map(|word| number(word).map(|number| (word.to_owned(), number)));
    let [begin, end] = [ends[0].clone()?, ends[1].clone()?];
    let lowercase = truth("do_lower_case").unwrap_or(true);
    let normalizer = BertNormalizer::new(true, truth("tokenize_chinese_chars").unwrap_or(true), truth("strip_accents"), lowercase);
    let special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"].map(|word| AddedToken::from(word, true));
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(normalizer)).map_err(|cause| wrong("vocab.txt", &cause))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer)).with_post_processor(Some(BertProcessing::new(end, begin)));
    tokenizer.add_special_tokens(special).map_err(|cause| wrong("vocab.txt", &cause))?;
    Ok(tokenizer)
}
