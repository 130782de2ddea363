//! The command line of `cellwright-lab`: its benchmarks, its help, and what it refuses. The simulator
//! has a file of its own, `simulate.rs`.

use cellwright_tests::binary::{Ran, lab};
use serde_json::Value;

/// Fails with everything that the program printed.
#[track_caller]
fn assert_status(ran: &Ran, status: i32) {
    assert_eq!(ran.status, Some(status), "stdout:\n{}\nstderr:\n{}", ran.stdout, ran.stderr);
}

/// Standard output as JSON lines.
#[track_caller]
fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn help_has_an_example_for_each_verb() {
    for verb in [
        &["simulate"][..],
        &["calibrate"],
        &["replay"],
        &["figures"],
        &["bench", "unfold"],
        &["bench", "engine"],
        &["bench", "cell"],
        &["bench", "scheduler"],
    ] {
        let ran = lab(&[verb, &["--help"]].concat(), "");
        assert_status(&ran, 0);
        assert!(ran.stdout.contains(&format!("cellwright-lab {}", verb.join(" "))), "{}", ran.stdout);
        assert!(ran.stdout.contains("\n      --log <FILTER>") && ran.stdout.contains("Example"), "{}", ran.stdout);
    }
    let completions = lab(&["completions", "bash"], "").stdout;
    assert!(completions.contains("cellwright-lab") && !completions.contains("compile-plugin"));
}

#[test]
fn renamed_options_keep_their_old_names() {
    let renamed: [(&[&str], &str, &str); 4] = [
        (&["bench", "engine"], "--max-in-flight", "--in-flight-max"),
        (&["bench", "engine"], "--duration", "--seconds"),
        (&["calibrate", "bundle"], "--requests", "--input"),
        (&["figures"], "--out", "--output"),
    ];
    for (verb, old, new) in renamed {
        let twice = lab(&[verb, &[old, "1", new, "1"]].concat(), "");
        assert_status(&twice, 2);
        assert!(twice.stderr.contains(new) && twice.stderr.contains("cannot be used multiple times"), "{}", twice.stderr);
    }
}

/// Not for their figures, which are measured elsewhere.
#[test]
fn benchmarks_run_and_report_in_json() {
    let ran = lab(&["bench", "unfold", "--calls", "50", "--json"], "");
    assert_status(&ran, 0);
    assert!(lines(&ran).len() >= 3, "{}", ran.stdout);
    let engine = ["bench", "engine", "--hidden", "16", "--lengths", "fixed:3", "--rate", "200", "--seconds", "0.5", "--json"];
    let ran = lab(&[&engine[..], &["--policy", "cellular,graph:10"]].concat(), "");
    assert_status(&ran, 0);
    let reports = lines(&ran);
    assert_eq!(reports.len(), 2, "one report for each policy:\n{}", ran.stdout);
    for report in &reports {
        assert!(report["of_cells"].as_f64().is_some_and(|share| share > 0.0), "{report}");
    }
}

/// Every crowd, and every figure of it.
#[test]
fn what_deciding_costs_is_measured_for_every_crowd() {
    let ran = lab(&["bench", "scheduler", "--seconds", "0.05", "--json"], "");
    assert_status(&ran, 0);
    let [costs] = lines(&ran).try_into().expect("one object");
    let costs = costs.as_object().expect("an object");
    let crowds = ["chains", "chains_10000", "chains_100000", "mix", "seq2seq", "trees"];
    assert_eq!(costs.keys().map(String::as_str).collect::<Vec<_>>(), crowds);
    for (crowd, cost) in costs {
        for figure in ["in_flight", "nodes_per_s", "ns_per_node", "ns_per_task", "nodes_per_task", "requests_per_s", "bytes_per_request"] {
            assert!(cost[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure} of {crowd}: {cost}");
        }
        // Warmed up, a request may need no memory of its own.
        assert!(cost["allocations_per_request"].as_f64().is_some_and(|count| count >= 0.0), "{crowd}: {cost}");
        // Each figure from the others: a task's time is that of its nodes.
        let task = cost["ns_per_node"].as_f64().expect("a number") * cost["nodes_per_task"].as_f64().expect("a number");
        assert!((cost["ns_per_task"].as_f64().expect("a number") / task - 1.0).abs() < 1e-6, "{crowd}: {cost}");
    }
}

#[test]
fn a_cell_is_measured_against_the_processor_and_drawn() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plot = folder.path().join("roofline.svg").display().to_string();
    for kind in ["lstm", "gru", "rnn", "tree", "leaf", "projection"] {
        let measured = ["bench", "cell", "--cell", kind, "--hidden", "24", "--vocabulary", "50", "--batch", "1,7", "--threads", "2"];
        let ran = lab(&[&measured[..], &["--seconds", "0.05", "--json", "--plot", &plot]].concat(), "");
        assert_status(&ran, 0);
        let figures = lines(&ran);
        assert_eq!(figures.iter().map(|line| line["batch"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(7)], "{}", ran.stdout);
        for line in &figures {
            assert_eq!((&line["cell"], &line["precision"]), (&kind.into(), &"f32".into()));
            for figure in ["gflops", "peak_gflops", "peak_share", "gb_per_s", "read_gb_per_s", "read_share", "roof_share", "gemm_us"] {
                assert!(line[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure} of {line}");
            }
            // Each figure from the others: a step's operations over its time.
            let flops = line["row_flops"].as_f64().expect("a number") * line["batch"].as_f64().expect("a number");
            let gflops = flops / line["step_us"].as_f64().expect("a number") / 1e3;
            assert!((line["gflops"].as_f64().expect("a number") / gflops - 1.0).abs() < 1e-6, "{line}");
        }
        assert!(std::fs::read_to_string(&plot).is_ok_and(|svg| svg.starts_with("<svg") && svg.contains("GFLOP/s")));
    }
    let refused = |arguments: &[&str]| {
        let ran = lab(&[&["bench", "cell"], arguments].concat(), "");
        assert_ne!(ran.status, Some(0), "{}", ran.stdout);
        ran.stderr
    };
    assert!(refused(&["--precision", "f31"]).contains("`f31` is not a precision; the precisions are `f32`, `f16`, `bf16` and `int8`"));
    assert!(refused(&["--batch", "0"]).contains("0 is not in 1..=4096"));
    assert!(refused(&["--cell", "gate"]).contains("invalid value 'gate'"));
    let taken = folder.path().display().to_string();
    assert!(refused(&["--seconds", "0.05", "--hidden", "16", "--plot", &taken]).contains("give the name of a file"));
}

#[test]
fn conflicting_options_are_refused() {
    for (arguments, said) in [
        (
            &["simulate", "--seconds", "0.01", "--rate", "100", "--faster", "2"][..],
            "'--rate <RATE>' cannot be used with '--faster <FACTOR>'",
        ),
        (&["simulate", "--seconds", "0.01", "--clients", "2", "--faster", "2"], "'--clients <N>' cannot be used with '--faster <FACTOR>'"),
        (&["calibrate", "--http", "--hidden", "8"], "'--http' cannot be used with '--hidden <HIDDEN>'"),
        (&["calibrate", "--input", "requests.jsonl", "--model", "tree"], "'--input <FILE>' cannot be used with '--model <MODEL>'"),
        (&["calibrate", "--input", "requests.jsonl", "--lengths", "fixed:3"], "'--input <FILE>' cannot be used with '--lengths <SOURCE>'"),
        (&["bench", "cell", "--plot", "nowhere/roofline.svg"], "no folder nowhere"),
    ] {
        let ran = lab(arguments, "");
        assert_status(&ran, 2);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn errors_that_show_at_the_start_come_before_any_measurement() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = folder.path().display().to_string();
    let empty = folder.path().join("empty.jsonl");
    std::fs::write(&empty, "\n").expect("a file");
    let empty = empty.display().to_string();
    let no_file = "give the name of a file";
    let seconds = "give a number of seconds from 0.1 to 3600";
    for (arguments, status, said) in [
        (&["simulate", "--seconds", "0.01", "--plot", ""][..], 2, no_file),
        (&["simulate", "--seconds", "0.01", "--timeline", &taken], 2, no_file),
        (&["calibrate", "--hidden", "8", "--output", &taken], 2, no_file),
        (&["calibrate", "--hidden", "8", "--seconds", "NaN"], 2, seconds),
        (&["bench", "engine", "--hidden", "8", "--seconds", "0"], 2, seconds),
        (&["calibrate", "examples/digits", "--seconds", "0.1", "--input", &empty], 1, "cannot be used: the file holds no requests"),
        (&["bench", "unfold", "nowhere"], 1, "the bundle nowhere cannot be used"),
    ] {
        let ran = lab(arguments, "");
        assert_status(&ran, status);
        assert!(ran.stderr.contains(said), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}
