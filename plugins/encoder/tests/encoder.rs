//! The graphs of `encoder`, and what it refuses.

use cellwright_encoder::Encoder;
use cellwright_guest::prelude::*;
use cellwright_guest::testing::{Described, TestRequest};
use cellwright_guest::types::{Extent, Source as Given, Value};

const WORDS: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfox\nquick\n##ly\nç\nc\n狐\n";
const CONFIG: &str = r#"{"model_type": "bert", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 6}"#;
const MODULES: &str = r#"[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}, {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;

/// The files that are the same in all tests but for one of them.
fn folder(path: &str, contents: &str) -> Bundle {
    let files = [
        ("config.json", CONFIG),
        ("vocab.txt", WORDS),
        ("modules.json", MODULES),
        ("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#),
    ];
    let mut bundle = Bundle::new().weight("embeddings.word_embeddings.weight", &[12, 8]);
    for (name, own) in files.into_iter().filter(|(name, _)| *name != path) {
        bundle = bundle.file(name, own.as_bytes());
    }
    if contents.is_empty() { bundle } else { bundle.file(path, contents.as_bytes()) }
}

fn described(bundle: &Bundle, parameters: &[(&str, Value)]) -> Result<Described<Encoder>, String> {
    Described::with_bundle(parameters, bundle).map_err(|refusal| refusal.sentence().to_owned())
}

fn encoder() -> Described<Encoder> {
    described(&folder("", ""), &[]).expect("the folder is right")
}

/// The tokens of each text.
fn tokens(growth: &Growth) -> Vec<Vec<i64>> {
    let of = |source: &Given| if let Given::Ints(tokens) = source { tokens.clone() } else { panic!("{source:?}") };
    growth.chains.iter().filter(|chain| chain.stages[0].cell == 0).map(|chain| of(&chain.stages[0].inputs[0])).collect()
}

#[test]
fn a_chain_for_each_layer_sees_all_of_the_layer_below() {
    let encoder = encoder();
    let growth = encoder.unfold(&TestRequest::new().texts("text", &["The quickly FOX", "狐"])).unwrap();
    assert_eq!(tokens(&growth), [vec![2, 5, 7, 8, 6, 3], vec![2, 11, 3]]);
    let lengths: Vec<Extent> = growth.chains.iter().map(|chain| chain.length).collect();
    assert_eq!(lengths, [6, 6, 6, 1, 3, 3, 3, 1].map(Extent::Fixed));
    let layer = &encoder.description.cells[1];
    assert_eq!(layer.inputs.iter().map(|port| port.ragged).collect::<Vec<_>>(), [false, false, true, true]);
    for input in [2, 3] {
        let Given::Many(spans) = &growth.chains[1].stages[0].inputs[input] else { panic!("a span") };
        assert!(spans.len() == 1 && spans[0].count.is_none());
    }
    assert_eq!(growth.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>(), ["embedding", "tokens"]);
}

#[test]
fn texts_are_cut_or_refused() {
    let encoder = encoder();
    let long = || TestRequest::new().texts("text", &["the fox the fox the"]);
    assert_eq!(tokens(&encoder.unfold(&long()).unwrap()), [vec![2, 5, 6, 5, 6, 3]]);
    let truncate = |truncate: bool| long().parameter("truncate", Value::Truth(truncate));
    let refused = encoder.unfold(&truncate(false)).unwrap_err();
    assert_eq!(refused.sentence(), "input `text` has 7 tokens in text 0, and this model takes at most 6");
    let strict = described(&folder("", ""), &[("truncate", Value::Truth(false)), ("max_length", Value::Int(4))]).unwrap();
    assert!(strict.unfold(&long()).is_err());
    assert_eq!(tokens(&strict.unfold(&truncate(true)).unwrap()), [vec![2, 5, 6, 3]]);
    assert_eq!(tokens(&encoder.unfold(&TestRequest::new().texts("text", &[""])).unwrap()), [vec![2, 3]], "an empty text has its ends");
}

#[test]
fn tokens_may_come_as_numbers() {
    let encoder = encoder();
    let ids = |ids: &[i64], shape: &[i64]| TestRequest::new().ints("input_ids", shape, ids);
    let given = ids(&[2, 6, 3, 2, 3, 0], &[2, 3]).ints("attention_mask", &[2, 3], &[1, 1, 1, 1, 1, 0]);
    assert_eq!(tokens(&encoder.unfold(&given).unwrap()), [vec![2, 6, 3], vec![2, 3]]);
    let refused = |request: TestRequest| encoder.unfold(&request).unwrap_err().sentence().to_owned();
    let cases = [
        (ids(&[2, 12], &[1, 2]), "input `input_ids` has the token 12 in text 0, and the vocabulary has 12"),
        (ids(&[], &[1, 0]), "input `input_ids` has no tokens in text 0"),
        (ids(&[], &[0, 3]), "input `input_ids` has no texts"),
        (
            ids(&[2, 3], &[1, 2]).ints("attention_mask", &[1, 2], &[0, 1]),
            "input `input_ids` has masked tokens before others in text 0: padding stands behind a text",
        ),
        (ids(&[2, 3], &[1, 2]).ints("attention_mask", &[2, 1], &[1, 1]), "input `attention_mask` must have the shape of `input_ids`"),
        (ids(&[2, 3], &[1, 2]).texts("text", &["a"]), "input `text` and `input_ids` are both given: the request has one of them"),
        (TestRequest::new(), "the request has neither `text` nor `input_ids`"),
    ];
    for (request, wanted) in cases {
        assert_eq!(refused(request), wanted);
    }
}

#[test]
fn folders_that_it_cannot_serve_are_refused() {
    let refused = |path: &str, contents: &str| described(&folder(path, contents), &[]).err().unwrap_or_default();
    let changed = |from: &str, to: &str| refused("config.json", &CONFIG.replace(from, to));
    let dense = MODULES.replace("2_Normalize", "2_Dense").replace("models.Normalize", "models.Dense");
    let cases = [
        (refused("config.json", ""), "file `config.json` cannot be read: there is no such file"),
        (changed("bert", "roberta"), "`model_type` of config.json is \"roberta\", and this plugin serves \"bert\""),
        (
            changed(r#""num_attention_heads": 2"#, r#""num_attention_heads": 3"#),
            "`num_attention_heads` of config.json must divide `hidden_size` (8), it is 3",
        ),
        (refused("vocab.txt", ""), "there is neither `tokenizer.json` nor `vocab.txt`"),
        (refused("vocab.txt", "[UNK]\nfox"), "file `vocab.txt` has no `[CLS]`"),
        (
            refused("1_Pooling/config.json", r#"{"pooling_mode_weightedmean_tokens": true}"#),
            "file `1_Pooling/config.json` asks for `pooling_mode_weightedmean_tokens`; this plugin has cls, max and mean",
        ),
        (
            refused("modules.json", &dense),
            "modules.json has the module Dense at place 2; this plugin has Transformer, Pooling and Normalize, in this order",
        ),
    ];
    for (given, wanted) in cases {
        assert_eq!(given, wanted);
    }
    let no_table = folder("", "").without("embeddings.word_embeddings.weight");
    assert!(described(&no_table, &[]).err().unwrap().starts_with("there is no weight `embeddings.word_embeddings.weight`"));
    let prefixed = no_table.weight("bert.embeddings.word_embeddings.weight", &[12, 8]);
    assert!(described(&prefixed, &[]).is_ok());
    assert!(described(&folder("", ""), &[("max_length", Value::Int(7))]).is_err());
    assert!(described(&folder("", ""), &[("poolin", "mean".into())]).is_err());
}

#[test]
fn pooling_is_the_folders_or_the_parameters() {
    let both = folder("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}"#);
    let inputs = |described: &Described<Encoder>| {
        let pool = described.description.cells.last().unwrap();
        (pool.inputs.iter().map(|port| port.name.clone()).collect::<Vec<_>>(), pool.outputs[0].shape.clone())
    };
    assert_eq!(inputs(&described(&both, &[]).unwrap()), (vec!["all".to_owned(), "first".to_owned(), "count".to_owned()], vec![16]));
    let first = described(&both, &[("pooling", "cls".into())]).unwrap();
    assert_eq!(inputs(&first), (vec!["first".to_owned(), "count".to_owned()], vec![8]));
}
