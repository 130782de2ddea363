//! A guest that traps, loops, hoards or overflows: its call fails with a sentence, and nobody else's does.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_plugin_runtime::{CallError, Compiler, Export, Fault, LimitReached, Limits, Runtime, RuntimeOptions, Site};

use crate::guest::{Guest, words};
use crate::{model, model_with, nothing, runtime};

fn unfold(guest: &Guest) -> CallError {
    model(guest).unfold(&nothing()).unwrap_err()
}

fn limit(error: &CallError) -> LimitReached {
    match error {
        CallError::Limit { limit, .. } => *limit,
        other => panic!("{other}"),
    }
}

#[test]
fn a_trap_names_plugin_export_and_cause() {
    let error = unfold(&Guest::unfolding("(unreachable)"));
    assert_eq!(error.to_string(), "plugin `testee` failed in unfold: wasm `unreachable` instruction executed");
    let error = unfold(&Guest::unfolding("(i32.div_u (i32.const 1) (i32.const 0))"));
    assert_eq!(error.to_string(), "plugin `testee` failed in unfold: integer divide by zero");
    let named = Guest::unfolding("(call $culprit)").with_extra("(func $culprit (result i32) (i32.load (i32.const -1)))");
    let sentence = unfold(&named).to_string();
    assert!(sentence.contains("out of bounds memory access") && sentence.ends_with("in function \"culprit\""), "{sentence}");
    let mangled = Guest::unfolding("(call $_ZN10classifier4step17h0123456789abcdefE)")
        .with_extra("(func $_ZN10classifier4step17h0123456789abcdefE (result i32) (unreachable))");
    let sentence = unfold(&mangled).to_string();
    assert!(sentence.ends_with("in function \"classifier::step\""), "{sentence}");
}

/// Functions of Rust's own panics are the same in each of them.
#[test]
fn the_functions_are_named_in_which_a_panic_was() {
    let functions = [
        ("__rustc", "(unreachable)"),
        ("_ZN4core9panicking9panic_fmt17h0123456789abcdefE", "(call $__rustc)"),
        ("_ZN10classifier4step17h0123456789abcdefE", "(call $_ZN4core9panicking9panic_fmt17h0123456789abcdefE)"),
        ("_ZN10classifier6unfold17h0123456789abcdefE", "(call $_ZN10classifier4step17h0123456789abcdefE)"),
    ];
    let extra: String = functions.map(|(name, body)| format!("(func ${name} (result i32) {body})")).concat();
    let error = unfold(&Guest::unfolding("(call $_ZN10classifier6unfold17h0123456789abcdefE)").with_extra(&extra));
    assert_eq!(error.site().frames, ["classifier::step", "classifier::unfold"]);
    let sentence = "wasm `unreachable` instruction executed in function \"classifier::step\", called by \"classifier::unfold\"";
    assert!(error.to_string().ends_with(sentence), "{error}");
}

#[test]
fn the_text_of_a_panic_is_handed_back() {
    let guest = Guest::unfolding("(call $note (i32.const 3000) (i32.const 9)) (unreachable)")
        .with_import(r#"(import "cellwright:plugin/host@0.1.0" "note" (func $note (param i32 i32)))"#)
        .with_extra(r#"(data (i32.const 3000) "no weight")"#);
    let error = unfold(&guest);
    assert_eq!(error.to_string(), "plugin `testee` failed in unfold: wasm `unreachable` instruction executed (it noted: no weight)");
    let CallError::Failed { site, .. } = error else { panic!("{error}") };
    assert_eq!((site.export, site.notes), (Export::Unfold, vec!["no weight".to_owned()]));
}

/// A terminal would obey what is in it, and a log would have more lines than were written to it.
#[test]
fn the_latest_notes_are_told_in_one_line() {
    let many = "(loop $again (call $note (i32.const 3000) (i32.const 5))
        (global.set $left (i32.sub (global.get $left) (i32.const 1))) (br_if $again (global.get $left)))
        (call $note (i32.const 3100) (i32.const 20)) (unreachable)";
    let guest = Guest::unfolding(many)
        .with_import(r#"(import "cellwright:plugin/host@0.1.0" "note" (func $note (param i32 i32)))"#)
        .with_extra("(global $left (mut i32) (i32.const 40))")
        .with_extra(r#"(data (i32.const 3000) "debug") (data (i32.const 3100) "\1b[2Jno\0aweight  here!")"#);
    let error = unfold(&guest);
    assert!(error.to_string().ends_with("debug; debug; [2Jno weight here!)"), "{error}");
    assert!(!error.to_string().contains(char::is_control), "{error:?}");
    assert_eq!(error.site().notes.len(), 32);
}

#[test]
fn notes_are_bounded_in_number_and_size_and_belong_to_one_call() {
    let note = r#"(import "cellwright:plugin/host@0.1.0" "note" (func $note (param i32 i32)))"#;
    let noisy = "(loop $again (call $note (i32.const 0) (i32.const 100000))
        (global.set $left (i32.sub (global.get $left) (i32.const 1))) (br_if $again (global.get $left))) (unreachable)";
    let error = unfold(&Guest::unfolding(noisy).with_import(note).with_extra("(global $left (mut i32) (i32.const 1000))"));
    let CallError::Failed { site, .. } = error else { panic!("{error}") };
    assert_eq!(site.notes.len(), 32);
    assert!(site.notes.iter().all(|note| note.len() <= 2048));
    let long = Site { notes: vec!["x".repeat(600); 32], ..*site };
    let said = CallError::Limit { site: Box::new(long), limit: LimitReached::Memory(1) }.to_string();
    assert!(said.len() < 2500 && said.contains("noted: …; x"), "{said}");
    // The first call notes and succeeds; the second traps and has noted nothing.
    let once = "(if (global.get $called) (then (unreachable))) (global.set $called (i32.const 1))
        (call $note (i32.const 0) (i32.const 5)) (i32.const 1024)";
    let model = model(&Guest::unfolding(once).with_import(note).with_extra("(global $called (mut i32) (i32.const 0))"));
    model.unfold(&nothing()).unwrap();
    let CallError::Failed { site, .. } = model.unfold(&nothing()).unwrap_err() else { panic!() };
    assert_eq!(site.notes, Vec::<String>::new());
}

#[test]
fn an_endless_loop_ends_in_time() {
    let limits = Limits { call_time: Duration::from_millis(30), ..Limits::default() };
    let model = model_with(&Guest::unfolding("(loop $again (br $again)) (unreachable)"), &limits);
    let begin = Instant::now();
    let error = model.unfold(&nothing()).unwrap_err();
    assert_eq!(error.to_string(), "plugin `testee` used more than 30 ms of processor time in unfold");
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(28) && took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn an_endless_loop_ends_in_time_when_nothing_ran_for_long_before() {
    let options = RuntimeOptions { instances_max: 4, ..RuntimeOptions::new(Compiler::InProcess) };
    let plugin = Runtime::new(options)
        .unwrap()
        .compile("acme", "testee", &Guest::unfolding("(loop $again (br $again)) (unreachable)").wasm())
        .unwrap();
    let limits = Limits { call_time: Duration::from_millis(30), ..Limits::default() };
    for _ in 0..2 {
        let model = plugin.with_parameters(&[], Arc::new(Vec::new()), &limits).unwrap();
        // The clock sleeps by now, and the model's instance is ready, so that nothing but the call itself wakes it.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(limit(&model.unfold(&nothing()).unwrap_err()), LimitReached::Time(limits.call_time));
    }
}

#[test]
fn of_a_call_that_takes_long_its_thread_hears() {
    thread_local!(static HEARD: Cell<usize> = const { Cell::new(0) });
    let options =
        RuntimeOptions { instances_max: 4, on_long_call: || HEARD.set(HEARD.get() + 1), ..RuntimeOptions::new(Compiler::InProcess) };
    let plugin = Runtime::new(options)
        .unwrap()
        .compile("acme", "testee", &Guest::unfolding("(loop $again (br $again)) (unreachable)").wasm())
        .unwrap();
    let limits = Limits { call_time: Duration::from_millis(30), ..Limits::default() };
    let model = plugin.with_parameters(&[], Arc::new(Vec::new()), &limits).unwrap();
    for _ in 0..3 {
        let before = HEARD.get();
        model.unfold(&nothing()).unwrap_err();
        assert!(HEARD.get() > before);
    }
}

#[test]
fn describe_and_the_start_of_an_instance_have_a_time_of_their_own() {
    let limits = Limits { describe_time: Duration::from_millis(20), ..Limits::default() };
    let describe = |guest: &Guest| {
        let plugin = runtime().compile("acme", "testee", &guest.wasm()).unwrap();
        plugin.with_parameters(&[], Arc::new(Vec::new()), &limits).err().map(|error| error.to_string())
    };
    let looping = Guest { describe: "(loop $again (br $again)) (unreachable)".to_owned(), ..Guest::default() };
    assert_eq!(describe(&looping).as_deref(), Some("plugin `testee` used more than 20 ms of processor time in describe"));
    let starting = Guest::default().with_extra("(func $start (loop $again (br $again))) (start $start)");
    let sentence = "plugin `testee` used more than 20 ms of processor time in its start in function \"start\"";
    assert_eq!(describe(&starting).as_deref(), Some(sentence));
}

#[test]
fn a_hoarder_of_memory_is_stopped_at_the_limit_of_its_model() {
    let hoarding = Guest::unfolding("(loop $again (drop (memory.grow (i32.const 1))) (br $again)) (unreachable)");
    assert_eq!(limit(&unfold(&hoarding)), LimitReached::Memory(64 << 20));
    let limits = Limits { memory_bytes: 1 << 20, ..Limits::default() };
    let error = model_with(&hoarding, &limits).unfold(&nothing()).unwrap_err();
    assert_eq!(error.to_string(), "plugin `testee` asked for more than 1048576 bytes of memory in unfold");
    let two_mib = Guest::unfolding("(drop (memory.grow (i32.const 32))) (i32.const 1024)");
    assert_eq!(limit(&model_with(&two_mib, &limits).unfold(&nothing()).unwrap_err()), LimitReached::Memory(1 << 20));
    model(&two_mib).unfold(&nothing()).unwrap();
    let huge = Guest::unfolding("(memory.grow (i32.const 65535))");
    assert_eq!(limit(&unfold(&huge)), LimitReached::Memory(64 << 20));
}

#[test]
fn a_model_may_raise_its_memory_to_the_servers_limit() {
    let grow = |pages: u32| Guest::unfolding(format!("(drop (memory.grow (i32.const {pages}))) (i32.const 1024)"));
    let limits = Limits { memory_bytes: 1 << 30, ..Limits::default() };
    model_with(&grow(2000), &limits).unfold(&nothing()).unwrap();
    assert_eq!(limit(&model_with(&grow(9000), &limits).unfold(&nothing()).unwrap_err()), LimitReached::Memory(512 << 20));
}

#[test]
fn a_hoarder_of_table_elements_is_stopped() {
    let hoarding = Guest::unfolding("(loop $again (drop (table.grow $t (ref.null func) (i32.const 1000))) (br $again)) (unreachable)")
        .with_extra("(table $t 1 funcref)");
    assert_eq!(limit(&unfold(&hoarding)), LimitReached::TableElements(20_000));
}

#[test]
fn deep_recursion_ends_at_the_stacks_limit() {
    let recursing = Guest::unfolding("(call $deeper (i32.const 0))")
        .with_extra("(func $deeper (param i32) (result i32) (i32.add (call $deeper (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))");
    let error = unfold(&recursing);
    assert_eq!(limit(&error), LimitReached::Stack(512 << 10));
    let sentence =
        "plugin `testee` used more than 524288 bytes of stack in unfold in function \"deeper\", called by \"deeper\", \"deeper\"";
    assert!(error.to_string().starts_with(sentence), "{error}");
    assert_eq!(error.site().frames, ["deeper"; 6]);
}

#[test]
fn a_shadow_stack_that_leaves_memory_is_said_to_be_one() {
    let recursing = Guest::unfolding("(call $deeper)").with_extra(
        "(global $stack (mut i32) (i32.const 65536))
        (func $deeper (result i32)
            (global.set $stack (i32.sub (global.get $stack) (i32.const 4096)))
            (i32.store (global.get $stack) (i32.const 1))
            (call $deeper))",
    );
    let CallError::Failed { cause, .. } = unfold(&recursing) else { panic!() };
    assert!(cause.starts_with("out of bounds memory access (a stack overflow can end like this"), "{cause}");
}

/// Whoever reads it is told nothing by an empty line.
#[test]
fn a_refusal_without_words_is_said_to_be_one() {
    let data: String = words(&[1, 0, 3000, 3]).iter().map(|byte| format!("\\{byte:02x}")).collect();
    let guest =
        Guest::unfolding("(i32.const 2048)").with_extra(&format!(r#"(data (i32.const 2048) "{data}") (data (i32.const 3000) " \0a ")"#));
    assert_eq!(unfold(&guest).to_string(), "the plugin refuses this and does not say why");
}

#[test]
fn a_refusal_says_who_is_at_fault_in_the_plugins_words() {
    for (number, expected) in [(0, Fault::InvalidInput), (1, Fault::Unsupported), (2, Fault::Internal)] {
        let answer = words(&[1, number, 3000, 9]);
        let data: String = answer.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let guest = Guest::unfolding("(i32.const 2048)")
            .with_extra(&format!(r#"(data (i32.const 2048) "{data}") (data (i32.const 3000) "too short")"#));
        let error = unfold(&guest);
        assert_eq!(error.to_string(), "too short");
        assert!(matches!(error, CallError::Refused { fault, .. } if fault == expected));
    }
}

#[test]
fn a_failed_call_takes_its_instance_with_it() {
    // A guest that traps in its second call only: instances that failed would never be seen again, so calls alternate.
    let second = Guest::unfolding(
        "(if (global.get $called) (then (global.set $called (i32.const 0)) (unreachable)))
        (global.set $called (i32.const 1)) (i32.const 1024)",
    )
    .with_extra("(global $called (mut i32) (i32.const 0))");
    let model = model(&second);
    let outcomes: Vec<bool> = (0..6).map(|_| model.unfold(&nothing()).is_ok()).collect();
    assert_eq!(outcomes, [true, false, true, false, true, false]);
}
