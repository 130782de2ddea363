//! What the program says of itself: help, and completions for shells.

use cellwright_tests::binary::{Ran, cellwright};

/// Fails with everything that the program said.
#[track_caller]
fn assert_status(ran: &Ran, status: i32) {
    assert_eq!(ran.status, Some(status), "stdout:\n{}\nstderr:\n{}", ran.stdout, ran.stderr);
}

#[test]
fn help_shows_how_each_verb_is_used() {
    for verb in [&["run"][..], &["check"], &["logs"], &["bench", "serve"], &["completions"]] {
        let ran = cellwright(&[verb, &["--help"]].concat(), "");
        assert_status(&ran, 0);
        assert!(ran.stdout.contains(&format!("cellwright {}", verb.join(" "))), "{}", ran.stdout);
        assert!(ran.stdout.contains("Example"), "{verb:?} has no example:\n{}", ran.stdout);
    }
    let ran = cellwright(&["--version"], "");
    assert_status(&ran, 0);
    assert!(ran.stdout.starts_with("cellwright "), "{}", ran.stdout);
}

#[test]
fn completions_are_printed_for_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = cellwright(&["completions", shell], "");
        assert_status(&ran, 0);
        assert!(ran.stdout.contains("cellwright") && ran.stdout.contains("in-flight-max") && ran.stdout.contains("version"), "{shell}");
        // The host alone calls it.
        assert!(!ran.stdout.contains("compile-plugin"), "{shell}");
    }
}

#[test]
fn what_several_verbs_have_stands_behind_a_verbs_own_options() {
    for verb in [&["run"][..], &["serve"], &["push"], &["infer"], &["keys", "create"], &["tenants", "set"], &["bench", "serve"]] {
        let ran = cellwright(&[verb, &["--help"]].concat(), "");
        assert_status(&ran, 0);
        let options: Vec<&str> = ran.stdout.lines().filter_map(|line| line.trim_start().strip_prefix("--")).collect();
        let at = |name: &str| options.iter().position(|option| option.split_whitespace().next() == Some(name));
        assert_eq!(at("log"), Some(options.len() - 1), "{verb:?}: {options:?}");
        let own = [at("label"), at("name"), at("bytes-max"), at("in-flight-max")].into_iter().flatten().max();
        assert!(own.is_none() || at("server").is_none() || own < at("server"), "{verb:?}: {options:?}");
    }
}

#[test]
fn help_says_what_each_policy_does() {
    for verb in ["run", "serve"] {
        let ran = cellwright(&[verb, "--help"], "");
        assert_status(&ran, 0);
        let does = |name: &str| ran.stdout.lines().find_map(|line| line.trim_start().strip_prefix(&format!("- {name}:")));
        for name in ["adaptive", "cellular", "graph", "serial", "merge", "lazy", "length-aware", "stages"] {
            assert!(does(name).is_some_and(|text| text.split_whitespace().count() > 3), "{verb} {name}:\n{}", ran.stdout);
        }
    }
}

#[test]
fn shells_complete_policies_and_precisions() {
    let ran = cellwright(&["completions", "bash"], "");
    assert_status(&ran, 0);
    for names in ["cellular graph serial merge adaptive lazy length-aware stages", "f32 f16 bf16 int8"] {
        assert!(ran.stdout.contains(&format!("compgen -W \"{names}\"")), "{names}");
    }
}
