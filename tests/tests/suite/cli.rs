//! The command line as a person or a script meets it: verbs, exit statuses, what is printed where, and what errors say.

use cellwright_tests::binary::{Ran, Running, cellwright, cellwright_in, root};
use cellwright_tests::bundle_folder::BundleFolder;
use serde_json::{Value, json};

/// Fails with everything that the program said.
#[track_caller]
fn assert_status(ran: &Ran, status: i32) {
    assert_eq!(ran.status, Some(status), "stdout:\n{}\nstderr:\n{}", ran.stdout, ran.stderr);
}

/// Standard output as JSON lines.
#[track_caller]
fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// An error is one line that begins with `error: `, has these pieces, and says nothing twice.
#[track_caller]
fn assert_error(ran: &Ran, pieces: &[&str]) {
    let error = ran.stderr.lines().find(|line| line.starts_with("error: "));
    let error = error.unwrap_or_else(|| panic!("no error in:\n{}", ran.stderr));
    for piece in pieces {
        assert!(error.contains(piece), "`{piece}` is not in: {error}");
    }
    let said: Vec<&str> = error.split(": ").collect();
    for (at, part) in said.iter().enumerate() {
        assert!(!said[..at].contains(part), "`{part}` is said twice: {error}");
    }
}

fn path(bundle: &BundleFolder) -> &str {
    bundle.path().to_str().expect("temporary folders have plain names")
}

fn sum_request(id: &str, rows: &str) -> String {
    format!("{{\"id\":\"{id}\",\"inputs\":[{{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1,4],\"data\":{rows}}}]}}\n")
}

#[test]
fn run_answers_every_sample_in_order() {
    for example in ["digits", "dates", "listops"] {
        let folder = format!("examples/{example}");
        let ran = cellwright(&["run", &folder, "--input", &format!("{folder}/samples.jsonl")], "");
        assert_status(&ran, 0);
        let expected = std::fs::read_to_string(root().join(&folder).join("expected.jsonl")).expect("the example says what it expects");
        let answers = lines(&ran);
        assert_eq!(answers.len(), expected.lines().count());
        for (answer, expected) in answers.iter().zip(expected.lines()) {
            let expected: Value = serde_json::from_str(expected).expect("JSON");
            assert_eq!(answer["id"], expected["id"]);
            assert_eq!(answer["model_name"], example);
            for wanted in expected["outputs"].as_array().expect("outputs").iter().filter(|output| output["datatype"] != "FP32") {
                assert!(answer["outputs"].as_array().expect("outputs").contains(wanted), "{wanted} is not in {answer}");
            }
        }
    }
}

#[test]
fn a_failed_request_lets_the_others_be() {
    let bundle = BundleFolder::summing();
    let input = [
        &sum_request("good", "[1,1,1,1]"),
        "\n",
        "this is no JSON\n",
        &sum_request("short", "[1,1,1]"),
        r#"{"id":"trap","parameters":{"behave":"trap"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[0,0,0,0]}]}"#,
        "\n",
        &sum_request("fine", "[0.5,0,0,-4]"),
    ]
    .concat();
    let ran = cellwright(&["run", path(&bundle), "--input", "-"], &input);
    assert_status(&ran, 1);
    assert_error(&ran, &["3 of 5 requests failed"]);
    let answers = lines(&ran);
    assert_eq!(answers.len(), 5);
    assert_eq!(answers[0]["outputs"][0]["data"], serde_json::json!([2.0, 3.0, 4.0, 5.0]));
    assert!(answers[1]["error"].as_str().is_some_and(|error| error.contains("line 3")), "{}", answers[1]);
    assert!(answers[2]["error"].as_str().is_some_and(|error| error.contains('x') && error.contains('4')), "{}", answers[2]);
    assert_eq!(answers[3]["id"], "trap");
    assert!(answers[3]["error"].as_str().is_some_and(|error| error.contains("plugin.wasm") && error.contains("unfold")), "{}", answers[3]);
    assert_eq!(answers[4]["outputs"][0]["data"], serde_json::json!([1.5, 2.0, 3.0, 0.0]));
}

#[test]
fn a_stream_comes_in_parts_that_make_up_the_whole() {
    let arguments = ["run", "examples/dates", "--input", "examples/dates/samples.jsonl"];
    let whole = lines(&cellwright(&arguments, ""));
    let ran = cellwright(&[&arguments[..], &["--stream"]].concat(), "");
    assert_status(&ran, 0);
    let parts = lines(&ran);
    for answer in &whole {
        let text: String = parts
            .iter()
            .filter(|part| part["id"] == answer["id"])
            .flat_map(|part| part["outputs"].as_array().into_iter().flatten())
            .filter_map(|output| output["data"][0].as_str())
            .collect();
        assert_eq!(answer["outputs"][0]["data"][0], text, "{}", answer["id"]);
    }
    let mut texts = parts.iter().flat_map(|part| part["outputs"].as_array().into_iter().flatten()).map(|output| &output["data"][0]);
    assert!(texts.all(|text| text != ""), "a part says nothing:\n{}", ran.stdout);
    assert!(parts.len() > whole.len() * 3, "{} lines are no stream of {} answers", parts.len(), whole.len());
}

#[test]
fn streams_of_several_requests_come_side_by_side() {
    let ran = cellwright(&["run", "examples/dates", "--input", "examples/dates/samples.jsonl", "--stream"], "");
    assert_status(&ran, 0);
    let ids: Vec<Value> = lines(&ran).iter().map(|line| line["id"].clone()).collect();
    let runs = ids.chunk_by(|before, after| before == after).count();
    let requests = ids.iter().filter_map(Value::as_str).collect::<std::collections::BTreeSet<_>>().len();
    assert!(requests > 1 && runs > requests, "each of {requests} requests waited for the one before it:\n{}", ran.stdout);
}

#[test]
fn answers_parts_and_traces_come_while_the_input_is_open() {
    let date =
        |id: &str| format!("{{{id}\"inputs\":[{{\"name\":\"text\",\"datatype\":\"BYTES\",\"shape\":[1],\"data\":[\"21.06.1979\"]}}]}}\n");
    let mut whole = Running::start(&["run", "examples/dates", "--input", "-"]);
    for id in ["first", "second"] {
        whole.say(&date(&format!("\"id\":\"{id}\",")));
        assert!(whole.line().contains(id));
    }
    let mut streamed = Running::start(&["run", "examples/dates", "--input", "-", "--stream", "--trace", "--json"]);
    streamed.say(&date(""));
    let first: Value = serde_json::from_str(&streamed.line()).expect("JSON");
    assert_eq!((&first["id"], &first["outputs"][0]["data"][0]), (&"line-1".into(), &"1".into()), "{first}");
    let task = streamed.line_of_stderr();
    assert!(task.contains("encoder") && task.contains("line-1:0.0"), "{task}");
}

#[test]
fn a_session_reads_its_chunks_line_by_line() {
    let bundle = BundleFolder::summing();
    let input = [
        r#"{"parameters":{"behave":"session"},"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,1,1,1]}]}"#,
        "\n",
        &sum_request("more", "[10,10,10,10]"),
        &sum_request("more", "[100,100,100,100]"),
    ]
    .concat();
    let ran = cellwright(&["run", path(&bundle), "--session", "--input", "-"], &input);
    assert_status(&ran, 0);
    assert_eq!(lines(&ran).len(), 1, "parts were not asked for: {}", ran.stdout);
    let ran = cellwright(&["run", path(&bundle), "--session", "--stream", "--input", "-"], &input);
    assert_status(&ran, 0);
    let sums: Vec<f64> = lines(&ran)
        .iter()
        .flat_map(|line| line["outputs"].as_array().cloned().unwrap_or_default())
        .filter_map(|output| output["data"][0].as_f64())
        .collect();
    assert!(sums.starts_with(&[2.0, 13.0, 114.0]), "{}", ran.stdout);
}

#[test]
fn a_trace_says_what_ran_together() {
    let arguments = ["run", "examples/digits", "--input", "examples/digits/samples.jsonl", "--trace"];
    let ran = cellwright(&arguments, "");
    assert_status(&ran, 0);
    assert!(ran.stderr.contains("digits-0"), "{}", ran.stderr);

    let ran = cellwright(&[&arguments[..], &["--json"]].concat(), "");
    assert_status(&ran, 0);
    let tasks: Vec<Value> = ran.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let rows = |task: &Value| task["rows"].as_array().map_or(0, Vec::len);
    assert!(tasks.iter().any(|task| rows(task) > 1), "no batch has two rows:\n{}", ran.stderr);
}

#[test]
fn policies_and_workers_do_not_change_answers() {
    let run = |more: &[&str]| {
        let ran = cellwright(&[&["run", "examples/dates", "--input", "examples/dates/samples.jsonl"], more].concat(), "");
        assert_status(&ran, 0);
        ran.stdout
    };
    let usual = run(&[]);
    for more in [
        &["--policy", "graph"][..],
        &["--policy", "graph:10"],
        &["--release", "subgraph"],
        &["--worker", "cpu", "--worker", "cpu"],
        &["--worker", "cpu:threads=2"],
        &["--in-flight-max", "1"],
    ] {
        assert_eq!(run(more), usual, "{more:?}");
    }
}

#[test]
fn check_says_what_a_bundle_is_made_of() {
    let ran = cellwright(&["check", "examples/digits"], "");
    assert_status(&ran, 0);
    for piece in ["digits", "lstm", "builtin:chain", "in_flight_max the server's, queued_max the tenant's, device_share none\n"] {
        assert!(ran.stdout.contains(piece), "`{piece}` is not in:\n{}", ran.stdout);
    }
    let ran = cellwright(&["check", "examples/digits", "--json"], "");
    assert_status(&ran, 0);
    let report: Value = serde_json::from_str(&ran.stdout).expect("one JSON value");
    // Those that a `model.toml` can set.
    let limits: Vec<_> = report["limits"].as_object().expect("limits").keys().map(String::as_str).collect();
    let settings = [
        "answer_mb",
        "chains_max",
        "cpu_ms",
        "device_share",
        "edges_max",
        "in_flight_max",
        "memory_mb",
        "nodes_max",
        "queued_max",
        "request_cpu_ms",
        "resumes_max",
        "state_bytes_max",
    ];
    assert_eq!(limits, settings, "{report}");
    let cells = report["cells"].as_array().expect("cells");
    assert!(cells.iter().all(|cell| cell["name"].is_string() && cell["batch_max"].as_u64() >= Some(1)), "{report}");
    let precisions = report["precisions"].as_array().expect("precisions");
    let names: Vec<_> = precisions.iter().map(|of| of["precision"].as_str().expect("a name")).collect();
    assert_eq!((report["precision"].as_str(), names.as_slice()), (Some("f32"), &["f32", "f16", "bf16", "int8"][..]));
    let error = |at: usize| precisions[at]["error"].as_f64().expect("logits are floats");
    assert!(error(0).abs() < f64::MIN_POSITIVE, "{report}");
    assert!((1..4).zip([0.01, 0.05, 0.2]).all(|(at, most)| error(at) > 0.0 && error(at) < most), "{report}");
    assert!(precisions.iter().all(|of| of["labelled"] == 10 && of["right"] == 10 && of["same"] == 10), "{report}");
}

#[test]
fn run_answers_what_a_request_asks_for_as_a_server_does() {
    let samples = std::fs::read_to_string(root().join("examples/digits/samples.jsonl")).expect("samples");
    let sample: Value = serde_json::from_str(samples.lines().next().expect("a sample")).expect("JSON");
    let asking = |name: &str, value: Value| {
        let mut request = sample.clone();
        request[name] = value;
        format!("{request}\n")
    };
    let outputs = |names: &[&str]| asking("outputs", names.iter().map(|name| json!({ "name": name })).collect());
    let given = |name: &str, value: u64| asking("parameters", json!({ name: value }));
    let input =
        [outputs(&["label"]), outputs(&["label", "logits"]), given("timeout", 1), outputs(&["nothing"]), given("sequence_id", 1)].concat();
    for more in [&[][..], &["--stream"]] {
        let ran = cellwright(&[&["run", "examples/digits", "--input", "-"], more].concat(), &input);
        assert_status(&ran, 1);
        let mut answers = lines(&ran);
        // As they come.
        answers.sort_by_key(|answer| answer.get("error").map(Value::to_string));
        let names = |at: usize| -> Vec<&str> {
            let outputs = answers[at]["outputs"].as_array().unwrap_or_else(|| panic!("{}", answers[at]));
            outputs.iter().map(|output| output["name"].as_str().expect("a name")).collect()
        };
        if more.is_empty() {
            assert_eq!([names(0), names(1), names(2)], [&["label"][..], &["label", "logits"], &["logits", "label"]]);
        }
        assert!((0..3).any(|at| names(at) == ["label"]), "{answers:?}");
        let error = |at: usize| answers[at]["error"].as_str().expect("an error");
        assert!(error(3).starts_with("line 4: requested output `nothing`: the model has no such output"), "{}", error(3));
        assert!(error(4).starts_with("line 5: sequences"), "{}", error(4));
    }
}

#[test]
fn a_run_may_be_at_another_precision() {
    let line = std::fs::read_to_string(root().join("examples/digits/samples.jsonl")).expect("samples");
    let line = line.lines().next().expect("a sample");
    let run = |precision: &[&str]| {
        let ran = cellwright(&[&["run", "examples/digits", "--input", "-", "--json"], precision].concat(), line);
        assert_status(&ran, 0);
        let answer: Value = serde_json::from_str(&ran.stdout).expect("one JSON value");
        let output = |at: usize| answer["outputs"][at]["data"].clone();
        (output(0), output(1))
    };
    let (logits, label) = run(&[]);
    assert_eq!(run(&["--precision", "f32"]), (logits.clone(), label.clone()));
    for precision in ["f16", "bf16", "int8"] {
        let (other, same) = run(&["--precision", precision]);
        assert_eq!(same, label);
        assert_ne!(other, logits, "{precision} rounds");
    }
    let ran = cellwright(&["run", "examples/digits", "--input", "-", "--precision", "fp8"], line);
    assert_status(&ran, 2);
    assert!(ran.stderr.contains("`fp8` is not a precision; the precisions are `f32`, `f16`, `bf16` and `int8`"), "{}", ran.stderr);
}

#[test]
fn what_was_measured_is_kept_until_it_is_to_be_measured_again() {
    let cache = tempfile::tempdir().expect("a folder");
    let measured = |more: &[&str]| {
        let folder = cache.path().to_str().expect("temporary folders have plain names");
        let ran = cellwright(&[&["check", "examples/digits", "--json", "--cache", folder], more].concat(), "");
        assert_status(&ran, 0);
        let report: Value = serde_json::from_str(&ran.stdout).expect("one JSON value");
        report["cells"].as_array().expect("cells").iter().map(|cell| cell["measured"].clone()).collect::<Vec<_>>()
    };
    let first = measured(&[]);
    assert_eq!(measured(&[]), first, "the same times to the nanosecond are no new measurement");
    let again = measured(&["--recalibrate"]);
    assert_ne!(again, first, "times that are measured again are not the same to the nanosecond");
    assert_eq!(measured(&[]), again, "what was measured last is kept");
}

#[test]
fn check_refuses_a_wrong_answer() {
    let bundle = BundleFolder::summing();
    let unknown = cellwright(&["check", path(&bundle)], "");
    assert!(unknown.stdout.contains("1 of 1 passed; 0 compared") && unknown.stdout.contains(", 1 only run\n"), "{}", unknown.stdout);
    bundle.edit("model.toml", "[samples]", "[samples]\nexpected = \"expected.jsonl\"");
    let expected =
        |sum: &str| format!("{{\"id\":\"one\",\"outputs\":[{{\"name\":\"sum\",\"datatype\":\"FP32\",\"shape\":[4],\"data\":{sum}}}]}}\n");
    bundle.write("expected.jsonl", expected("[8,12,16,20]").as_bytes());
    assert_status(&cellwright(&["check", path(&bundle)], ""), 0);
    bundle.write("expected.jsonl", expected("[8,12,16,21]").as_bytes());
    let ran = cellwright(&["check", path(&bundle)], "");
    assert_status(&ran, 1);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    for piece in ["one", "sum", "21", "20"] {
        assert!(said.contains(piece), "`{piece}` is not in:\n{said}");
    }
}

#[test]
fn what_is_wrong_with_a_bundle_or_a_folder_is_said_in_one_line() {
    let bundle = BundleFolder::summing();
    bundle.remove("weights.safetensors");
    for verb in [&["check", path(&bundle)][..], &["run", path(&bundle), "--input", "-"]] {
        let ran = cellwright(verb, "");
        assert_status(&ran, 1);
        assert_error(&ran, &["weights.safetensors", "missing"]);
        assert_eq!(ran.stdout, "");
    }
    let ran = cellwright(&["check", "examples/nowhere"], "");
    assert_status(&ran, 1);
    assert_error(&ran, &["examples/nowhere"]);
    let ran = cellwright(&["run", "examples/digits", "--input", "nowhere.jsonl"], "");
    assert_status(&ran, 1);
    assert_error(&ran, &["nowhere.jsonl"]);
    let ran = cellwright(&["check", "examples/digits", "--cache", "Cargo.toml"], "");
    assert_status(&ran, 1);
    assert_error(&ran, &["the plugin cache in Cargo.toml cannot be used: ", "`--cache none`"]);
}

/// The plugin is compiled by another process, which a bad plugin cannot take the host down with.
#[test]
fn what_is_no_plugin_is_refused() {
    let bundle = BundleFolder::summing();
    bundle.write("plugin.wasm", b"\0asm\x0d\0\x01\0and then nothing that makes sense");
    let ran = cellwright(&["check", path(&bundle)], "");
    assert_status(&ran, 1);
    assert_error(&ran, &["plugin.wasm", "not valid WebAssembly"]);
}

#[test]
fn a_gpu_that_is_not_there_is_said_and_auto_goes_on_without() {
    // Files by the library's names that are no libraries: whichever this machine has is not found behind them.
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(name), "no library").expect("a file");
    }
    let environment = [("LD_LIBRARY_PATH", folder.path().to_str().expect("temporary folders have plain names"))];
    let run = ["run", "examples/digits", "--input", "examples/digits/samples.jsonl", "--worker"];
    let with = |workers: &[&str]| cellwright_in(&environment, &[&run, workers].concat(), "");
    for worker in ["cuda:0", "cuda:all"] {
        let ran = with(&[worker]);
        assert_status(&ran, 1);
        assert_error(&ran, &[&format!("cannot start worker `{worker}`: there is no NVIDIA driver")]);
    }
    let ran = with(&["auto"]);
    assert_status(&ran, 0);
    assert!(!lines(&ran).is_empty());
    let said = ran.stderr.lines().filter(|line| line.contains("workers run on the CPU: there is no NVIDIA driver")).count();
    assert_eq!(said, 1, "{}", ran.stderr);
}

#[test]
fn wrong_usage_is_status_2_and_says_what_to_do() {
    for (arguments, piece) in [
        (&["server"][..], "serve"),
        (&["run", "examples/digits"], "--input"),
        (&["run", "examples/digits", "--input", "-", "--policy", "magic"], "magic"),
        (&["run", "examples/digits", "--input", "-", "--policy", "graph:99999999"], "0 to 1024"),
        (&["run", "examples/digits", "--input", "-", "--worker", "tpu"], "tpu"),
        (&["bench", "serve", "examples/digits", "--plot", "nowhere/sweep.svg"], "no folder nowhere"),
        (&["bench", "serve", "examples/digits", "--threads", "0"], "not a whole number of at least 1"),
        (&["bench", "serve", "examples/digits", "--rate", "1e-20"], "0.000001 to 10 million"),
        (&["bench", "serve", "examples/digits", "--connections", "0"], "not a whole number of at least 1"),
        (&["bench", "serve", "examples/digits", "--seconds", "nan"], "--seconds"),
        (&["serve", "--body-bytes-max", "0"], "not a whole number of at least 1"),
        (&["serve", "--upload-bytes-max", "0"], "--upload-bytes-max"),
        (&["serve", "--connections-max", "0"], "not a whole number of at least 1"),
        (&["serve", "--drain-seconds", "1.5"], "`1.5` is not a whole number of seconds"),
        (&["tenants", "set", "acme", "--device-share", "nan"], "give a number from 0"),
        (&["run", "examples/digits", "--input", "-", "--in-flight-max", "0"], "--in-flight-max"),
        (&[], "Usage"),
    ] {
        let ran = cellwright(arguments, "");
        assert_status(&ran, 2);
        assert!(ran.stderr.contains(piece), "`{piece}` is not in:\n{}", ran.stderr);
        assert!(ran.stderr.contains("--help") || ran.stderr.contains("Usage"), "{}", ran.stderr);
    }
}

#[test]
fn a_setting_of_the_environment_that_is_empty_counts_as_none() {
    let nowhere = [("CELLWRIGHT_SERVER", ""), ("CELLWRIGHT_CA", ""), ("CELLWRIGHT_KEY", ""), ("CELLWRIGHT_DATA", "/nowhere/at all")];
    assert_error(&cellwright_in(&nowhere, &["keys", "list"], ""), &["there is no server's data folder at /nowhere/at all"]);
    let ran = cellwright_in(&[("CELLWRIGHT_DRAIN_SECONDS", ""), ("CELLWRIGHT_LISTEN", "")], &["serve", "--print-config"], "");
    assert_status(&ran, 0);
    let setting = ran.stdout.lines().find(|line| line.starts_with("drain_seconds = ")).unwrap_or_default();
    assert!(setting.ends_with("# default"), "{}", ran.stdout);
}

/// Nobody is there, and `--worker` is for a server that is started.
#[test]
fn a_benchmark_asks_no_server_that_the_environment_names() {
    let asked = ["bench", "serve", "examples/digits", "--worker", "cpu", "--connections", "1", "--seconds", "0.2", "--json"];
    let ran = cellwright_in(&[("CELLWRIGHT_SERVER", "http://127.0.0.1:1")], &asked, "");
    assert_status(&ran, 0);
    assert!(ran.stderr.contains("a server on this machine"), "{}", ran.stderr);
}

#[test]
fn a_level_of_the_log_that_is_none_is_not_the_name_of_a_crate() {
    for (filter, status) in [("wran", 2), ("info,wran", 2), ("cellwright_engine=wran", 2), ("warn,cellwright_engine=debug", 0), ("off", 0)]
    {
        let ran = cellwright(&["run", "examples/digits", "--input", "examples/digits/samples.jsonl", "--log", filter], "");
        assert_status(&ran, status);
        if status > 0 {
            assert_error(&ran, &["wran"]);
        }
    }
}

#[test]
fn an_option_is_called_alike_by_every_verb_and_its_old_name_goes_on() {
    let renamed: [(&[&str], &str, &str); 4] = [
        (&["run", "bundle"], "--max-in-flight", "--in-flight-max"),
        (&["infer", "model"], "--max-in-flight", "--in-flight-max"),
        (&["bench", "serve", "bundle"], "--duration", "--seconds"),
        (&["bench", "serve", "bundle"], "--requests", "--input"),
    ];
    for (verb, old, new) in renamed {
        let help = cellwright(&[verb, &["--help"]].concat(), "").stdout;
        assert!(help.contains(&format!("{new} ")) && !help.contains(&format!("{old} ")), "{verb:?}\n{help}");
        let twice = cellwright(&[verb, &[old, "1", new, "1"]].concat(), "");
        assert_status(&twice, 2);
        assert!(twice.stderr.contains(new) && twice.stderr.contains("cannot be used multiple times"), "{}", twice.stderr);
    }
}

#[test]
fn options_that_would_not_be_heeded_are_refused() {
    for (arguments, said) in [
        (&["check", "examples/digits", "--worker", "cpu:threads=1,threads=2"][..], "`threads` of a worker is given twice"),
        (&["bench", "serve", "examples/digits", "--server", "http://127.0.0.1:1", "--worker", "cpu"], "cannot be used with"),
        (&["check", "examples/digits", "--worker", "auto", "--worker", "cpu"], "chooses all workers"),
        (&["check", "examples/digits", "--worker", "cpu:amx=true", "--worker", "cpu"], "all workers must give the same results"),
        (&["serve", "--tls-key", "key.pem", "--print-config"], "TLS needs both"),
        (&["models", "--log", "loud"], "`loud` is not a log level"),
    ] {
        let ran = cellwright(arguments, "");
        assert_status(&ran, 2);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn what_can_be_seen_beforehand_is_not_first_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("plot.svg").display().to_string();
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "\n").expect("a file");
    let empty = empty.display().to_string();
    for (arguments, status, said) in [
        (&["bench", "serve", "examples/digits", "--seconds", "0.1", "--plot", &file][..], 2, "cannot draw `--rate max` alone"),
        (&["bench", "serve", "examples/digits", "--seconds", "0.1", "--input", &empty], 1, "cannot be used: the file holds no requests"),
        (&["bench", "serve", "nowhere"], 1, "the bundle nowhere cannot be used"),
    ] {
        let ran = cellwright(arguments, "");
        assert_status(&ran, status);
        assert!(ran.stderr.contains(said) && !ran.stderr.contains("a server on this machine"), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}

#[test]
fn a_check_looks_at_the_whole_folder_that_would_be_sent() {
    let bundle = BundleFolder::summing();
    let check = || cellwright(&["check", path(&bundle), "--worker", "cpu", "--worker", "cpu"], "");
    let ran = check();
    assert_status(&ran, 0);
    assert!(ran.stdout.contains("\ndevice   2 × cpu: "), "{}", ran.stdout);
    let link = bundle.path().join("other");
    std::os::unix::fs::symlink("model.toml", &link).expect("a link");
    let ran = check();
    assert_status(&ran, 1);
    assert_error(&ran, &["this bundle cannot be uploaded", "other: it is a link; a bundle holds only files and folders"]);
    std::fs::remove_file(&link).expect("a link");
    for number in 0..1000 {
        bundle.write(&format!("{number}.txt"), b"");
    }
    let ran = check();
    assert_status(&ran, 1);
    assert_error(&ran, &["this bundle cannot be uploaded", "a bundle has at most 1000 files"]);
}
