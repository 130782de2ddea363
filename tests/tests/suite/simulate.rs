//! The simulator as a person or a script meets it: what it prints, draws, and says of bad input.

use cellwright_tests::binary::{Ran, lab, program, root};
use serde_json::Value;

fn runs(arguments: &[&str]) -> Vec<Value> {
    let ran = lab(&[&["simulate", "--json"], arguments].concat(), "");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The error that a run ends with.
fn refused(arguments: &[&str]) -> String {
    let Ran { status, stderr, .. } = lab(&[&["simulate"], arguments].concat(), "");
    assert_ne!(status, Some(0));
    stderr.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_else(|| panic!("no error in {stderr}")).to_owned()
}

#[test]
fn a_run_is_one_object_and_the_same_for_the_same_seed() {
    let arguments = ["--policy", "cellular,graph:10", "--rate", "1000,5000", "--seconds", "1", "--seed", "7", "--objective-ms", "20"];
    let first = runs(&arguments);
    assert_eq!(first.len(), 4);
    assert_eq!(first, runs(&arguments));
    for run in &first {
        let numbers = ["rate", "throughput", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "mean_batch", "utilisation", "sla_violations"];
        for key in numbers {
            assert!(run[key].is_number(), "{key} in {run}");
        }
        for part in ["queueing", "computation"] {
            assert!(run[part]["p99_ms"].is_number(), "{part} in {run}");
        }
    }
    let p90 = |run: &Value| run["p90_ms"].as_f64().unwrap_or(f64::NAN);
    assert!((10.8..13.2).contains(&p90(&first[1])) && p90(&first[3]) > 100.0, "{first:?}");
}

#[test]
fn clients_keep_as_many_requests_in_flight_as_there_are() {
    let arguments = ["--clients", "64", "--batch-max", "64", "--fixed-length", "10", "--seconds", "1"];
    let run = &runs(&arguments)[0];
    assert_eq!((&run["clients"], &run["rate"], &run["unfinished"]), (&64.into(), &Value::Null, &64.into()));
    // 64 rows in 250 us, ten times: the device is never short of work, and nobody waits for it.
    assert!((25_000.0..25_700.0).contains(&run["throughput"].as_f64().unwrap_or(0.0)), "{run}");
    assert!(
        refused(&["--clients", "0"]).contains("--clients <N>")
            && refused(&["--clients", "4", "--rate", "3"]).contains("cannot be used with")
    );
}

#[test]
fn who_was_not_answered_is_counted_and_has_no_latency() {
    let none = ["--policy", "adaptive", "--rate", "100", "--seconds", "1", "--objective-ms", "0.001"];
    let run = &runs(&none)[0];
    for latency in [&run["mean_ms"], &run["p99_ms"], &run["queueing"]["p90_ms"], &run["computation"]["mean_ms"]] {
        assert_eq!(latency, &Value::Null, "{run}");
    }
    assert!(run["answered"] == 0 && run["failed"].as_u64() > Some(0), "{run}");
    let lines = |arguments: &[&str]| {
        let table = lab(&[&["simulate"], arguments].concat(), "").stdout;
        table.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()).collect()
    };
    let table: Vec<Vec<String>> = lines(&none);
    let (failed, dash) = (run["failed"].to_string(), "-".to_owned());
    assert!(table[1].contains(&dash) && table[1][table[1].len() - 2..] == [failed, "0".to_owned()], "{table:?}");
    let overload = ["--policy", "serial", "--rate", "2000", "--seconds", "1"];
    let table: Vec<Vec<String>> = lines(&overload);
    assert!(table[0].last().is_some_and(|head| head == "open") && table[1].last() == Some(&runs(&overload)[0]["unfinished"].to_string()));
}

/// As in BatchMaker's experiments: whole graphs are batched by what goes in alone, unless it is said that more is known.
#[test]
fn how_long_decoding_takes_is_not_known_before() {
    let run = |more: &[&str]| {
        let arguments = ["--workload", "seq2seq", "--policy", "graph:10", "--rate", "1000", "--seconds", "1"];
        runs(&[&arguments, more].concat())[0]["p90_ms"].as_f64().unwrap_or(f64::NAN)
    };
    let (unsaid, known) = (run(&[]), run(&["--decode-known"]));
    assert_eq!(unsaid, run(&["--decode-bound", "50"]));
    assert!(known > 1.2 * unsaid, "{known} {unsaid}");
    assert!(refused(&["--decode-known"]).contains("for the workload seq2seq"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("long.csv").display().to_string();
    std::fs::write(&trace, "0,3,53\n1,3,54\n").expect("a trace");
    let said = |more: &[&str]| lab(&[&["simulate", "--workload", "seq2seq", "--trace", &trace], more].concat(), "").stderr;
    assert!(said(&[]).contains("1 outputs are cut 50 steps beyond"), "{}", said(&[]));
    assert!(!said(&["--decode-bound", "51"]).contains("note") && !said(&["--decode-known"]).contains("note"));
}

#[test]
fn a_trace_is_played_to_its_end_and_drawn() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (trace, device, plot, timeline) = (at("trace.csv"), at("unit.toml"), at("plot.svg"), at("timeline.svg"));
    // BatchMaker's figure 5.
    let arrivals: String =
        [(0, 2), (0, 3), (0, 3), (0, 5), (1, 5), (1, 7), (1, 3), (1, 1)].map(|(at, length)| format!("{at}000,{length}\n")).concat();
    std::fs::write(&trace, arrivals).expect("a trace");
    std::fs::write(&device, "name = \"unit\"\n[default]\ncompute_us = [[4, 1000]]\n").expect("a device");
    let arguments =
        ["--trace", &trace, "--device", &device, "--batch-max", "4", "--max-tasks", "1", "--plot", &plot, "--timeline", &timeline];
    let run = runs(&arguments).remove(0);
    assert_eq!((&run["answered"], &run["unfinished"]), (&8.into(), &0.into()));
    // The last of them, of seven steps, waits two units and runs seven.
    assert!((8.9..9.1).contains(&run["p99_ms"].as_f64().unwrap_or(0.0)), "{run}");
    for file in [&plot, &timeline] {
        assert!(std::fs::read_to_string(file).is_ok_and(|svg| svg.starts_with("<svg")), "{file}");
    }
}

#[test]
fn bad_input_is_named_by_file_line_and_field() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let late = file("late.csv", "t_us\n5\n4\n");
    assert_eq!(
        refused(&["--trace", &late]),
        format!("{late}: line 3: time: `4` is before the arrival of the line above; times must be in order")
    );
    let falls = file("falls.toml", "name = \"x\"\n[cells.lstm]\ncompute_us = [[1, 5], [2, 4]]\n");
    let said = format!("{falls}: line 3: cells.lstm.compute_us: knot 2 takes less time than the smaller batch before it");
    assert_eq!(refused(&["--device", &falls]), said);
    let other = file("other.toml", "name = \"x\"\n[cells.gru]\ncompute_us = [[1, 5]]\n");
    assert!(refused(&["--device", &other]).starts_with(&format!("{other}: the device x has no costs for the cell `lstm`")));
    for (workload, of, needs) in [("gnmt", "v100", "npu"), ("resnet", "v100", "npu"), ("trees", "npu", "v100")] {
        let said = refused(&["--workload", workload, "--device", of]);
        assert!(said.ends_with(&format!("; `--device {needs}` has them")), "{said}");
    }
    let lengths = file("lengths.csv", "length\n0\n");
    assert_eq!(refused(&["--lengths", &lengths]), format!("{lengths}: line 2: length: `0` is no length from 1 to 100000"));
    let rubbish = file("rubbish.csv", "rubbish\n5\n");
    assert!(refused(&["--trace", &rubbish]).starts_with(&format!("{rubbish}: line 1: time: `rubbish` is no number of microseconds, ")));
    let missing = folder.path().join("missing").display().to_string();
    for option in ["--trace", "--lengths"] {
        assert!(refused(&[option, &missing]).starts_with(&format!("{missing} cannot be read: ")), "{option}");
    }
}

#[test]
fn a_number_that_will_not_do_is_named_with_its_bounds() {
    let rate = "is not a number of requests per second above 0, at most 100000000";
    let apart = lab(&["simulate", "--rate", "-3"], "").stderr;
    assert!(apart.contains(&format!("`-3` {rate}")), "{apart}");
    let cases: &[(&str, &[&str], &str)] = &[
        ("--rate", &["0", "-3", "1e9", "nan", "inf", "many"], rate),
        ("--faster", &["0", "-1", "2e9", "nan", "inf"], "is not a factor above 0, at most 1000000000"),
        ("--seconds", &["0", "-1", "1e7", "nan", "inf"], "is not a time above 0, at most 1000000"),
        ("--objective-ms", &["0", "1e7"], "is not a time above 0, at most 1000000"),
        ("--scheduling-ns", &["-1", "2e9", "nan"], "is not a number of nanoseconds from 0 to 1000000000"),
        ("--devices", &["0", "65"], "is not in 1..=64"),
        ("--clients", &["0", "1000001"], "is not in 1..=1000000"),
        ("--fixed-length", &["0", "100001"], "is not in 1..=100000"),
        ("--length-max", &["0", "100001"], "is not in 1..=100000"),
        ("--leaves", &["0", "100001"], "is not in 1..=100000"),
        ("--decode-bound", &["-1", "100001"], "is not in 0..=100000"),
        ("--batch-max", &["0", "64,0", "65537"], "is not in 1..=65536"),
        ("--batch-min", &["0", "65537"], "is not in 1..=65536"),
        ("--max-tasks", &["0", "1025"], "is not in 1..=1024"),
        ("--low-water", &["1025"], "is not in 0..=1024"),
        ("--bucket-width", &["-1", "4294967296"], "is not in 0..=4294967295"),
        ("--policy", &["nonsense"], "`nonsense` is not a policy; the policies are `adaptive`, "),
    ];
    for (option, values, said) in cases {
        for value in *values {
            let sentence = refused(&[&format!("{option}={value}")]);
            assert!(sentence.contains(option) && sentence.contains(said), "{option} {value}: {sentence}");
        }
    }
    assert_eq!(refused(&["--batch-min", "8", "--batch-max", "16,4"]), "--batch-min is 8, more rows than --batch-max 4 allows");
    for wrong in [["--batch-min", "9999"], ["--bucket-width", "5"], ["--device", "gtx"]] {
        assert_eq!(lab(&[&["simulate"], &wrong[..]].concat(), "").status, Some(2), "{wrong:?}");
    }
    assert!(refused(&["--bucket-width", "5"]).starts_with("--bucket-width is for the policy `graph`"));
    assert_eq!(refused(&["--device", "gtx"]), "there is no device `gtx`: give a file, or one of v100, npu");
    // No width at all, as the help says, is one bucket for everything.
    assert_eq!(runs(&["--policy", "graph", "--bucket-width", "0", "--rate", "100", "--seconds", "0.1"])[0]["policy"], "graph:0");
}

#[test]
fn what_a_workload_does_not_use_of_a_trace_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, "t_us,in,out\n1\n2,3\n4,5,6\n").expect("a trace");
    let file = path.to_str().expect("a path in UTF-8");
    let note = |line: usize, field: &str, workload: &str| {
        format!("note: {file}: line {line}: {field}: the workload {workload} ignores it, here and below\n")
    };
    let (source, target) = ("length", "target length");
    for (workload, device, said) in [
        ("lstm", "v100", note(4, target, "lstm")),
        ("trees", "v100", note(3, source, "trees") + &note(4, target, "trees")),
        ("seq2seq", "v100", String::new()),
        ("resnet", "npu", note(3, source, "resnet") + &note(4, target, "resnet")),
        ("deepspeech", "npu", note(4, target, "deepspeech")),
        ("transformer", "npu", note(3, source, "transformer")),
        ("gnmt", "npu", String::new()),
    ] {
        let ran = lab(&["simulate", "--trace", file, "--workload", workload, "--device", device], "");
        assert_eq!((ran.status, ran.stderr), (Some(0), said), "{workload}");
    }
}

/// A million requests on a terminal that standard output goes to as well. Python makes the terminal: `tests/run` needs it anyway.
#[test]
fn a_bar_is_shown_on_a_terminal_and_nowhere_else() {
    let arguments = ["simulate", "--rate", "20000", "--seconds", "50", "--fixed-length", "8", "--json"];
    let terminal = "import pty, sys; pty.spawn([sys.argv[1], *sys.argv[2:]])";
    let shown = std::process::Command::new("python3")
        .args(["-c", terminal])
        .arg(program().with_file_name("cellwright-lab"))
        .args(arguments)
        .output()
        .expect("python3");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("ms of virtual time"), "{shown}");
    let ran = lab(&arguments, "");
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    let run: Value = serde_json::from_str(&ran.stdout).expect("JSON alone");
    assert!(run["answered"].as_u64().is_some_and(|answered| answered > 700_000), "{run}");
}

/// The unit tests of `cellwright-simulator` make every figure and compare it with the one that is kept.
#[test]
fn a_figure_is_written_and_is_the_one_that_is_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("figures");
    let ran = lab(&["figures", "--output", out.to_str().expect("a path in UTF-8"), "--only", "5"], "");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("published") && !ran.stdout.contains("\n! "), "{}", ran.stdout);
    let mut written: Vec<String> = std::fs::read_dir(&out)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8"))
        .collect();
    written.sort();
    // No page: a page of some figures would hide the others.
    assert_eq!(written, ["figure-5-cellular.svg", "figure-5-graph.svg", "figure-5.json"]);
    for file in written {
        let kept = std::fs::read(root().join("tests/figures").join(&file)).expect("a figure that is kept");
        assert!(std::fs::read(out.join(&file)).is_ok_and(|made| made == kept), "{file} differs");
    }
}

#[test]
fn figures_that_there_are_not_or_cannot_be_written_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let below = file.join("figures");
    let said = |status, arguments: &[&str]| {
        let ran = lab(&[&["figures"], arguments].concat(), "");
        assert_eq!(ran.status, Some(status));
        ran.stderr
    };
    assert!(said(2, &["--only", "6"]).starts_with("error: there is no figure `6`; the figures are 5, 7a, "));
    let below = below.to_str().expect("a path in UTF-8");
    let sentence = said(1, &["--only", "5", "--output", below]);
    assert!(sentence.starts_with(&format!("error: cannot create the folder {below}: ")) && sentence.lines().count() == 1, "{sentence}");
}

#[test]
fn a_machine_that_was_measured_is_a_device() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cpu.toml");
    let name = file.to_str().expect("a path in UTF-8");
    let measure = ["calibrate", "--hidden", "16", "--seconds", "0.1", "--worker", "cpu", "--cache", "none", "--output", name];
    let ran = lab(&measure, "");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let text = std::fs::read_to_string(&file).expect("a table");
    assert!(text.contains("bench-chain on 1 x cpu") && text.contains("shares_memory = true"), "{text}");
    let beside = ["\nbetween_us = ", "\nrequest_us = ", "\nwake_us = [", "\nhandover_us = ["];
    assert!(beside.iter().all(|field| text.contains(field)), "{text}");
    let run = &runs(&["--device", name, "--devices", "2", "--rate", "1000", "--seconds", "0.5"])[0];
    assert!(run["answered"].as_u64().is_some_and(|answered| answered > 300), "{run}");

    // The same by clients over HTTP, who ask what they are told to.
    let measure = ["calibrate", "examples/digits", "--http", "--policy", "graph:4", "--input", "examples/digits/samples.jsonl"];
    let ran = lab(&[&measure[..], &["--seconds", "0.1", "--worker", "cpu", "--cache", "none", "--output", name]].concat(), "");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let text = std::fs::read_to_string(&file).expect("a table");
    assert!(text.contains("digits on 1 x cpu") && text.contains("under `graph:4`, with clients over HTTP"), "{text}");
    assert_eq!(runs(&["--device", name, "--rate", "100", "--seconds", "0.5"]).len(), 1);

    let said = lab(&["calibrate", "--http"], "").stderr;
    assert!(said.contains("<BUNDLE>"), "{said}");
    let said = lab(&["calibrate", "examples/digits", "--http", "--input", "no/such/file"], "").stderr;
    assert!(said.contains("the requests in no/such/file cannot be used"), "{said}");
    let said = lab(&["calibrate", "--seconds", "0"], "").stderr;
    assert!(said.contains("give a number of seconds from 0.1 to 3600"), "{said}");
    let said = lab(&["calibrate", "no/such/bundle"], "").stderr;
    assert!(said.contains("the bundle no/such/bundle cannot be used"), "{said}");
}
