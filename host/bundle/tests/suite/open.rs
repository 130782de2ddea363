//! Bundles in temporary folders: one that is whole, and for each way to break it the sentence that says so.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;

use cellwright_bundle::{Bundle, CellSettings, NamedPolicy};
use cellwright_cell_graph::typed::Precision;
use cellwright_cell_graph::{AttributeValue, Body, Cell, Datatype, Description, Operator, Port, Tensor};
use proptest::prelude::*;
use tempfile::TempDir;

const MODEL: &str = r#"name = "tiny"
plugin = "plugin.wasm"
weights = "weights.safetensors"

[parameters]
hidden = 4
scale = 0.5
kind = "lstm"
deep.list = [1, 2]
words = ["a", "b"]

[limits]
nodes_max = 100

[cells.step]
batch_max = 8
priority = -1

[samples]
requests = "samples.jsonl"
expected = "expected.jsonl"
"#;

const SAMPLES: &str = r#"{"id":"a","inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}

{"id":"b","inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":["NaN"]}]}
"#;

const EXPECTED: &str = r#"{"id":"a","outputs":[{"name":"y","shape":[1],"datatype":"INT64","data":[1]}]}
{"id":"b","outputs":[]}
"#;

/// A safetensors file of one tensor `w` with that dtype, shape and data.
fn safetensors(dtype: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{}]}}}}"#, data.len());
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

fn whole() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, bytes: &[u8]| fs::write(folder.path().join(file), bytes).unwrap();
    write("model.toml", MODEL.as_bytes());
    write("plugin.wasm", b"\0asm");
    write("weights.safetensors", &safetensors("F32", "[2,1]", &[0; 8]));
    write("samples.jsonl", SAMPLES.as_bytes());
    write("expected.jsonl", EXPECTED.as_bytes());
    folder
}

#[test]
fn a_whole_bundle_is_read() {
    let folder = whole();
    let bundle = Bundle::open(folder.path()).unwrap();
    assert_eq!((bundle.name(), bundle.plugin_name(), bundle.plugin_bytes()), ("tiny", "plugin.wasm", &b"\0asm"[..]));
    let parameters: Vec<_> = bundle.parameters().iter().map(|parameter| (parameter.name.as_str(), &parameter.value)).collect();
    let expected = [
        ("deep.list", &AttributeValue::Ints(vec![1, 2])),
        ("hidden", &AttributeValue::Int(4)),
        ("kind", &AttributeValue::Text("lstm".into())),
        ("scale", &AttributeValue::Float(0.5)),
        ("words", &AttributeValue::Texts(vec!["a".into(), "b".into()])),
    ];
    assert_eq!(parameters, expected);
    let weights = bundle.weights(&reading(&["w"])).unwrap();
    let weight = weights.get("w").unwrap();
    assert_eq!((weight.datatype, weight.shape.as_slice()), (Datatype::Fp32, &[2, 1][..]));
    assert_eq!(bundle.limits().nodes_max, Some(100));
    assert_eq!(bundle.cells()["step"], CellSettings { batch_max: Some(8), priority: Some(-1) });
    assert_eq!(bundle.samples().all.len(), 2);
    assert_eq!(bundle.samples().all[0].expected.as_ref().unwrap()[0].name, "y");
    assert!((bundle.samples().tolerance - 1e-4).abs() < 1e-12);
}

#[test]
fn a_stock_plugin_and_no_weights_will_do() {
    let folder = whole();
    let model = "name = \"t\"\nplugin = \"builtin:chain\"\n[samples]\nrequests = \"samples.jsonl\"\n";
    fs::write(folder.path().join("model.toml"), model).unwrap();
    let bundle = Bundle::open(folder.path()).unwrap();
    assert!(
        bundle.plugin_bytes().starts_with(b"\0asm") && bundle.view().weights().is_empty() && bundle.samples().all[0].expected.is_none()
    );
}

#[test]
fn precision_decides_the_tolerance_unless_it_is_given() {
    let folder = whole();
    for (more, precision, tolerance) in [
        ("precision = \"f16\"\n", Precision::F16, 2.5e-3),
        ("precision = \"bf16\"\n", Precision::Bf16, 2e-2),
        ("precision = \"int8\"\n", Precision::Int8, 5e-2),
        ("precision = \"f32\"\n", Precision::F32, 1e-4),
        ("", Precision::F32, 1e-4),
    ] {
        fs::write(folder.path().join("model.toml"), format!("{more}{MODEL}")).unwrap();
        let bundle = Bundle::open(folder.path()).unwrap();
        assert_eq!(bundle.precision(), precision);
        assert!((bundle.samples().tolerance - tolerance).abs() < 1e-12);
        fs::write(folder.path().join("model.toml"), format!("{more}{MODEL}tolerance = 0.5\n")).unwrap();
        assert!((Bundle::open(folder.path()).unwrap().samples().tolerance - 0.5).abs() < 1e-12);
    }
}

/// Replaces a piece of `model.toml`.
fn edited(from: &str, to: &str) -> impl Fn(&Path) {
    let text = MODEL.replace(from, to);
    assert_ne!(text, MODEL);
    move |folder: &Path| fs::write(folder.join("model.toml"), &text).unwrap()
}

/// Writes a file of the bundle anew.
fn written(file: &str, bytes: &[u8]) -> impl Fn(&Path) {
    move |folder: &Path| fs::write(folder.join(file), bytes).unwrap()
}

fn removed(file: &str) -> impl Fn(&Path) {
    move |folder: &Path| fs::remove_file(folder.join(file)).unwrap()
}

#[track_caller]
fn assert_refused(damage: impl Fn(&Path), sentence: &str) {
    let folder = whole();
    damage(folder.path());
    let message = Bundle::open(folder.path()).unwrap_err().to_string();
    assert!(message.contains(sentence), "{message}\n instead of\n{sentence}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn a_missing_file_is_named() {
    for file in ["model.toml", "plugin.wasm", "weights.safetensors", "samples.jsonl", "expected.jsonl"] {
        assert_refused(removed(file), &format!("`{file}` is missing from the bundle"));
    }
    let message = Bundle::open(Path::new("no/such/folder")).unwrap_err().to_string();
    assert!(message.starts_with("no/such/folder cannot be opened: "), "{message}");
    let message = Bundle::open(&whole().path().join("model.toml")).unwrap_err().to_string();
    assert!(
        message.contains("cannot be opened") || message.ends_with("is not a folder; a bundle is a folder with a model.toml"),
        "{message}"
    );
}

#[test]
fn a_wrong_key_or_value_is_named() {
    let cases = [
        ("weights =", "weight =", "line 3: weight: unknown field `weight`, expected one of `name`, `plugin`, `weights`"),
        ("nodes_max", "nodes", "line 13: limits.nodes: unknown field `nodes`, expected one of `cpu_ms`, `request_cpu_ms`, `memory_mb`"),
        ("batch_max", "batch", "line 16: cells.step.batch: unknown field `batch`, expected `batch_max` or `priority`"),
        (
            "requests =",
            "request =",
            "line 20: samples.request: unknown field `request`, expected one of `requests`, `expected`, `tolerance`",
        ),
        (
            "[samples]\nrequests = \"samples.jsonl\"\nexpected = \"expected.jsonl\"\n",
            "",
            "the table [samples] is missing: add `[samples]` and below it `requests = \"samples.jsonl\"`, a file",
        ),
        ("requests = \"samples.jsonl\"\n", "", "line 19: samples: missing field `requests`"),
        ("name = \"tiny\"\n", "", "line 1: missing field `name`"),
        ("\"tiny\"", "7", "line 1: name: invalid type: integer `7`, expected a string"),
        ("nodes_max = 100", "nodes_max = -1", "line 13: limits.nodes_max: invalid value: integer `-1`, expected a whole number from 0 on"),
        ("nodes_max = 100", "nodes_max = 0", "line 13: limits.nodes_max is 0; it must be at least 1"),
        ("nodes_max = 100", "device_share = 1.5", "line 13: limits.device_share is 1.5; it must be more than 0 and at most 1"),
        ("batch_max = 8", "batch_max = 0", "line 16: cells.step.batch_max is 0; it must be at least 1"),
        ("[parameters]", "latency_objective_ms = 0\n[parameters]", "line 5: latency_objective_ms is 0; it must be at least 1"),
        (
            "[parameters]",
            "precision = \"fp8\"\n[parameters]",
            "line 5: precision: unknown variant `fp8`, expected one of `f32`, `bf16`, `int8`, `f16`",
        ),
        ("[parameters]", "policy = 3\n[parameters]", "line 5: policy: invalid type: integer `3`, expected a string"),
        ("[samples]", "[samples]\ntolerance = 2.0", "line 20: samples.tolerance is 2; it must be a number from 0 to 1"),
        ("[samples]", "[samples", "line 19: samples: "),
        ("plugin.wasm", "builtin:lstm", "line 2: the plugin `builtin:lstm` does not exist; the built-in ones are `builtin:chain`, "),
    ];
    for (from, to, said) in cases {
        assert_refused(edited(from, to), &format!("model.toml: {said}"));
    }
    for name in ["", "a b", "../x", ".hidden", "ü", &"n".repeat(129)] {
        assert_refused(edited("\"tiny\"", &format!("{name:?}")), &format!("model.toml: line 1: `{name}` is not a valid name"));
    }
}

#[test]
fn a_policy_keeps_its_line() {
    let folder = whole();
    edited("[parameters]", "policy = \"nonsense\"\n[parameters]")(folder.path());
    let bundle = Bundle::open(folder.path()).unwrap();
    assert_eq!(bundle.policy(), Some(&NamedPolicy { name: "nonsense".to_owned(), line: 5 }));
}

#[test]
fn a_parameter_of_no_known_type_is_named() {
    assert_refused(edited("hidden = 4", "hidden = 2020-01-01"), "parameter `hidden` is a date or a time; parameters are integers, ");
    assert_refused(edited("[1, 2]", "[1, 2.5]"), "parameter `deep.list` is a list of mixed or unsuitable elements");
    assert_refused(edited("[1, 2]", "[]"), "parameter `deep.list` is an empty list");
    assert_refused(edited("hidden = 4", "hidden = 4\n\"deep.list\" = 3"), "parameter `deep.list` is given twice");
}

/// A few kilobytes, which the parser takes, and which once were read by as many calls within one another.
#[test]
fn tables_thousands_deep_are_refused() {
    let keys = ["a"; 79].join(".");
    let deep = format!("{}1{}", format!("{{{keys} = ").repeat(78), "}".repeat(78));
    let nested = "model.toml: line 6: tables and lists stand in one another more than 64 deep";
    assert_refused(edited("[parameters]", &format!("[parameters]\ndeeper = {deep}")), nested);
    assert_refused(edited("[parameters]", &format!("[parameters]\ntwice = {deep}\ntwice = {deep}")), "model.toml: line ");
}

/// Half a megabyte, of which once a gigabyte of names was made.
#[test]
fn parameters_with_names_as_long_as_the_file_are_refused() {
    let long = "x".repeat(500_000);
    let many: String = (0..2_000).map(|number| format!("a{number} = 1\n")).collect();
    let named = format!("parameter `{}…` has a name of more than 512 bytes", "x".repeat(64));
    assert_refused(edited("[parameters]", &format!("[parameters.{long}]\n{many}[parameters]")), &named);
}

#[test]
fn names_do_not_lead_out() {
    for name in ["../secret", "/etc/passwd", "", "a/../../x", "./plugin.wasm"] {
        assert_refused(edited("plugin.wasm", name), &format!("`{name}` is not the name of a file in the bundle"));
    }
    #[cfg(unix)]
    {
        let link = |folder: &Path| {
            fs::remove_file(folder.join("plugin.wasm")).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", folder.join("plugin.wasm")).unwrap();
        };
        assert_refused(link, "`plugin.wasm` is not the name of a file in the bundle");
    }
    let folder_instead = |folder: &Path| {
        fs::remove_file(folder.join("plugin.wasm")).unwrap();
        fs::create_dir(folder.join("plugin.wasm")).unwrap();
    };
    assert_refused(folder_instead, "`plugin.wasm` is not a regular file");
}

#[test]
fn wrong_weights_are_named() {
    assert_refused(written("weights.safetensors", b"nonsense"), "`weights.safetensors`: it is not a valid safetensors file, or has too");
    let names = format!("{}{{}}", " ".repeat(16 << 20));
    let long = [&(names.len() as u64).to_le_bytes(), names.as_bytes()].concat();
    assert_refused(written("weights.safetensors", &long), "its header would have 16777218 bytes, more than the limit of 16777216");
    let whole = safetensors("F32", "[2,1]", &[0; 8]);
    assert_refused(written("weights.safetensors", &whole[..whole.len() - 1]), "it is not a valid safetensors file: ");
    assert_refused(written("weights.safetensors", &safetensors("F32", "[3]", &[0; 8])), "it is not a valid safetensors file: ");
}

#[test]
fn other_formats_of_weights_are_recognised() {
    let zip = |name: &str| [b"PK\x03\x04".as_slice(), &[0; 22], &[name.len() as u8, 0, 0, 0], name.as_bytes(), &[0; 40]].concat();
    let cases = [
        (zip("archive/data.pkl"), "`weights.safetensors`: it is a PyTorch file, and weights are safetensors: write them with `safetensors"),
        (b"\x80\x02}q\x00(X\x04\x00\x00\x00fc.wq\x01".to_vec(), "it is a PyTorch file"),
        (zip("fc.weight.npy"), "it is a NumPy file, and weights are safetensors: write them with `safetensors.numpy"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'".to_vec(), "it is a NumPy file"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0".to_vec(), "it is an HDF5 file (Keras)"),
        (b"\x08\x08\x12\x07pytorch\x1a\x052.4.0:".to_vec(), "it is an ONNX model"),
        (b"GGUF\x03\0\0\0\0\0\0\0".to_vec(), "it is a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec(), "it is a pointer of Git LFS"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec(), "it is compressed"),
    ];
    for (bytes, sentence) in cases {
        assert_refused(written("weights.safetensors", &bytes), sentence);
    }
}

/// A description whose one cell reads weights of those names.
fn reading(names: &[&str]) -> Description {
    let operator = Operator {
        kind: "Sum".into(),
        inputs: ["x"].iter().chain(names).map(|name| (*name).to_owned()).collect(),
        outputs: vec!["y".into()],
        attributes: Vec::new(),
    };
    let port = Port { name: "x".into(), datatype: Datatype::Fp32, shape: vec![1], ragged: false, carried: false };
    let body = Body::Operators(vec![operator]);
    let cell = Cell { name: "step".into(), inputs: vec![port], outputs: Vec::new(), body, batch_max: None, priority: None };
    Description { cells: vec![cell], ..Description::default() }
}

/// What is said of a bundle with that weight `w`, whose cells read `names`.
fn weights_refused(weights: &[u8], before: (&str, &str), description: &Description) -> String {
    let folder = whole();
    fs::write(folder.path().join("model.toml"), MODEL.replace(before.0, before.1)).unwrap();
    fs::write(folder.path().join("weights.safetensors"), weights).unwrap();
    let bundle = Bundle::open(folder.path()).unwrap();
    let checked = bundle.weights(description).and_then(|_| bundle.check_unread(description));
    checked.map_or_else(|error| error.to_string(), |()| String::new())
}

#[test]
fn floats_of_all_widths_are_read_as_floats_of_32_bits() {
    let values = [1.5_f32, -0.25];
    let files = [
        ("F16", [0x3e00_u16, 0xb400].iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>()),
        ("BF16", [0x3fc0_u16, 0xbe80].iter().flat_map(|bits| bits.to_le_bytes()).collect()),
        ("F32", values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        ("F64", values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect()),
    ];
    for (dtype, data) in files {
        let folder = whole();
        fs::write(folder.path().join("weights.safetensors"), safetensors(dtype, "[2]", &data)).unwrap();
        let weights = Bundle::open(folder.path()).unwrap().weights(&reading(&["w"])).unwrap();
        assert_eq!(**weights.get("w").unwrap(), Tensor::from_f32("w", &[2], &values), "{dtype}");
    }
    let refused = |dtype: &str, data: &[u8]| weights_refused(&safetensors(dtype, "[1]", data), ("", ""), &reading(&["w"]));
    let large = "weight `w` has the value 1e300, which is beyond the range of 32-bit floats";
    assert_eq!(refused("F64", &1e300_f64.to_le_bytes()), format!("`weights.safetensors`: {large}"));
    let wrong = refused("U8", &[1]);
    assert_eq!(wrong, "`weights.safetensors`: weight `w` has datatype U8; cells read F32, F16, BF16, F64, I64 and I32");
}

#[test]
fn weights_that_are_no_numbers_are_refused_unless_they_are_meant() {
    for (dtype, data, value) in [("F32", f32::NAN.to_le_bytes().to_vec(), "NaN"), ("BF16", 0xff80_u16.to_le_bytes().to_vec(), "-inf")] {
        let file = safetensors(dtype, "[1]", &data);
        let sentence = format!(
            "`weights.safetensors`: weight `w` has {value} at element 0: if that is meant, list it in model.toml, as in `allow_non_finite = [\"w\"]`"
        );
        assert_eq!(weights_refused(&file, ("", ""), &reading(&["w"])), sentence);
        let allowed = ("[parameters]", "allow_non_finite = [\"w\"]\n[parameters]");
        assert_eq!(weights_refused(&file, allowed, &reading(&["w"])), "");
    }
}

#[test]
fn weights_that_no_cell_reads_are_refused_unless_they_are_named() {
    // Whatever type it has: nobody reads it.
    let file = safetensors("F8_E4M3", "[1]", &[0]);
    let refused = |before, description: &Description| weights_refused(&file, before, description);
    let said = "`weights.safetensors`: no cell reads `w`: describe the model with them, leave them out, or list the beginnings of their names \
                in model.toml, as in `ignore = [\"w\"]`";
    assert_eq!(refused(("", ""), &reading(&[])), said);
    assert_eq!(refused(("[parameters]", "ignore = [\"v\", \"w\"]\n[parameters]"), &reading(&[])), "");
    // A plugin that compares its parameters with the weights does not see it either.
    let folder = whole();
    fs::write(folder.path().join("model.toml"), MODEL.replace("[parameters]", "ignore = [\"w\"]\n[parameters]")).unwrap();
    assert!(Bundle::open(folder.path()).unwrap().view().weights().is_empty());
    assert_eq!(refused(("", ""), &Description { ignored_weights: vec!["w".into()], ..reading(&[]) }), "");
}

#[test]
fn wrong_samples_are_named() {
    assert_refused(written("samples.jsonl", b"\n"), "`samples.jsonl` has no samples; give at least one sample request");
    assert_refused(written("samples.jsonl", b"\n{}"), "`samples.jsonl`, line 2: the message is not the JSON that the protocol asks for");
    let wrong = SAMPLES.replace("[\"NaN\"]", "[1,2]");
    assert_refused(
        written("samples.jsonl", wrong.as_bytes()),
        "`samples.jsonl`, line 3: input `x`: shape [1] has 1 element, the data has 2",
    );
    assert_refused(written("samples.jsonl", b"\xff"), "`samples.jsonl` is not UTF-8 text");
    let first = EXPECTED.lines().next().unwrap();
    assert_refused(written("expected.jsonl", first.as_bytes()), "`expected.jsonl` has 1 answers, `samples.jsonl` has 2 requests");
    assert_refused(
        written("expected.jsonl", format!("{first}\n{first}").as_bytes()),
        "line 2: the answer is for `a`, but the request of the same line is `b`",
    );
    assert_refused(removed("samples.jsonl"), "`samples.jsonl` is missing from the bundle");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever happens to a byte of it, a bundle is read or refused.
    #[test]
    fn no_damage_panics(file in 0_usize..4, position in 0_usize..400, byte in any::<u8>(), cut in prop::option::of(0_usize..400)) {
        let folder = whole();
        let path = folder.path().join(["model.toml", "weights.safetensors", "samples.jsonl", "expected.jsonl"][file]);
        let mut bytes = fs::read(&path).unwrap();
        if let Some(place) = bytes.get_mut(position) {
            *place = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        fs::write(&path, &bytes).unwrap();
        let _ = Bundle::open(folder.path());
    }
}
