//! Models of one plugin: parameters, reuse of instances, many threads, a pool that runs out.

use std::cell::RefCell;
use std::sync::Arc;

use cellwright_cell_graph::graph::Growth;
use cellwright_cell_graph::{Attribute, AttributeValue};
use cellwright_plugin_runtime::{CallError, Compiler, Fault, Limits, Plugin, PluginModel, Runtime, RuntimeOptions};

use crate::guest::{EMPTY_ANSWER, Guest, words};
use crate::{model, nothing, runtime};

/// Keeps the first parameter's integer in a global, and answers `unfold` with that many chains.
fn remembering() -> Guest {
    // A parameter is {name, value}: its integer lies at 16.
    let describe = format!("(global.set $kept (i32.load offset=16 (local.get 0))) {EMPTY_ANSWER}");
    let unfold = "(i32.store (i32.const 2052) (i32.const 4096)) (i32.store (i32.const 2056) (global.get $kept)) (i32.const 2048)";
    Guest { describe, ..Guest::unfolding(unfold) }.with_extra("(global $kept (mut i32) (i32.const 0))")
}

fn with_parameter(plugin: &Plugin, value: i64) -> PluginModel {
    let parameter = Attribute { name: "layers".to_owned(), value: AttributeValue::Int(value) };
    plugin.with_parameters(&[parameter], Arc::new(Vec::new()), &Limits::default()).unwrap()
}

fn chains(growth: &Growth) -> usize {
    growth.chains.len()
}

#[test]
fn every_instance_knows_its_models_parameters() {
    let plugin = runtime().compile("acme", "testee", &remembering().wasm()).unwrap();
    let (two, five) = (with_parameter(&plugin, 2), with_parameter(&plugin, 5));
    for _ in 0..3 {
        assert_eq!(chains(&two.unfold(&nothing()).unwrap()), 2);
        assert_eq!(chains(&five.unfold(&nothing()).unwrap()), 5);
        assert_eq!(chains(&two.unfold_fresh(&nothing()).unwrap()), 2);
    }
}

/// Descriptors are what connections need, and a server may have thousands of models.
#[test]
fn models_hold_no_descriptors() {
    let plugin = runtime().compile("acme", "testee", &Guest::answering(&[0; 64], b"bytes that every instance begins with").wasm()).unwrap();
    let models = [with_parameter(&plugin, 1), with_parameter(&plugin, 2)];
    models.iter().for_each(|model| drop(model.unfold(&nothing()).unwrap()));
    // Some are other tests', and may be closed meanwhile.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let memory: Vec<_> = open.filter(|file| file.to_string_lossy().starts_with("/memfd:")).collect();
    assert!(memory.is_empty(), "{memory:?}");
}

#[test]
fn a_plugin_may_refuse_its_parameters() {
    let answer: String = words(&[1, 0, 3000, 3]).iter().map(|byte| format!("\\{byte:02x}")).collect();
    let guest = Guest { describe: "(i32.const 2048)".to_owned(), ..Guest::default() }
        .with_extra(&format!(r#"(data (i32.const 2048) "{answer}") (data (i32.const 3000) "bad")"#));
    let plugin = runtime().compile("acme", "testee", &guest.wasm()).unwrap();
    let refused = plugin.with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).err().unwrap();
    assert!(matches!(&refused, CallError::Refused { fault: Fault::InvalidInput, sentence, .. } if sentence == "bad"), "{refused}");
}

/// Counts its calls and answers with that many chains: what it says tells whether an instance was used before.
fn counting() -> Guest {
    Guest::unfolding(
        "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (i32.store (i32.const 2052) (i32.const 4096)) (i32.store (i32.const 2056) (global.get $calls)) (i32.const 2048)",
    )
    .with_extra("(global $calls (mut i32) (i32.const 0))")
}

#[test]
fn a_warm_instance_serves_again_and_a_fresh_one_never_did() {
    let model = model(&counting());
    let warm: Vec<_> = (0..3).map(|_| chains(&model.unfold(&nothing()).unwrap())).collect();
    assert_eq!(warm, [1, 2, 3]);
    assert_eq!(chains(&model.unfold_fresh(&nothing()).unwrap()), 1);
    assert_eq!(chains(&model.unfold(&nothing()).unwrap()), 4);
}

/// Grows its memory by so many pages in each call, and answers with as many chains as it served calls.
fn leaking(pages: u32) -> Guest {
    let mut guest = counting();
    guest.unfold = format!("(drop (memory.grow (i32.const {pages}))) {}", guest.unfold);
    guest
}

#[test]
fn a_guest_that_leaks_fails_no_call() {
    for pages in [1, 16, 400] {
        let model = model(&leaking(pages));
        let served: Vec<_> = (0..3000).map(|_| chains(&model.unfold(&nothing()).unwrap())).collect();
        assert!(served.contains(&2) && served.iter().filter(|calls| **calls == 1).count() > 2, "{pages}");
    }
}

#[test]
fn an_instance_near_its_limit_is_retired_before_it_fails() {
    let model = model(&leaking(16));
    let most = (0..100).map(|_| chains(&model.unfold(&nothing()).unwrap())).max();
    assert_eq!(most, Some(56));
    // Whatever its first call took, it has room for.
    let mut once = counting();
    once.unfold = format!("(if (i32.eqz (global.get $calls)) (then (drop (memory.grow (i32.const 960))))) {}", once.unfold);
    let model = self::model(&once);
    assert_eq!((0..5).map(|_| chains(&model.unfold(&nothing()).unwrap())).max(), Some(5));
}

#[test]
fn a_call_that_no_fresh_instance_has_room_for_fails_in_one_sentence() {
    let model = model(&leaking(1024));
    for _ in 0..3 {
        let error = model.unfold(&nothing()).unwrap_err();
        assert_eq!(error.to_string(), "plugin `testee` asked for more than 67108864 bytes of memory in unfold");
    }
}

#[test]
fn notes_of_calls_that_succeed_are_heard() {
    thread_local!(static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });
    let on_note = |export, note: &str| HEARD.with_borrow_mut(|heard| heard.push(format!("{export}: {note}")));
    let options = RuntimeOptions { instances_max: 4, on_note, ..RuntimeOptions::new(Compiler::InProcess) };
    let note = "(call $note (i32.const 3000) (i32.const 5))";
    let guest = Guest { describe: format!("{note} {EMPTY_ANSWER}"), ..Guest::unfolding(format!("{note} {note} {EMPTY_ANSWER}")) }
        .with_import(r#"(import "cellwright:plugin/host@0.1.0" "note" (func $note (param i32 i32)))"#)
        .with_extra(r#"(data (i32.const 3000) "hello")"#);
    let plugin = Runtime::new(options).unwrap().compile("acme", "testee", &guest.wasm()).unwrap();
    plugin.with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).unwrap().unfold(&nothing()).unwrap();
    assert_eq!(HEARD.take(), ["describe: hello", "unfold: hello", "unfold: hello"]);
}

#[test]
fn one_bad_call_among_many_fails_alone() {
    // Fails for requests without parameters, in different ways by turns; answers with one chain otherwise.
    let unfold = "(call $parameters (i32.const 3000))
        (if (i32.eqz (i32.load (i32.const 3004))) (then (loop $again (br $again))))
        (i32.store (i32.const 2052) (i32.const 4096)) (i32.store (i32.const 2056) (i32.const 1)) (i32.const 2048)";
    let import = r#"(import "cellwright:plugin/request@0.1.0" "parameters" (func $parameters (param i32)))"#;
    let guest = Guest::unfolding(unfold).with_import(import);
    let model = model(&guest);
    let parameter = Attribute { name: "ok".to_owned(), value: AttributeValue::Truth(true) };
    let good = Arc::new(cellwright_plugin_runtime::RequestView::new([], vec![parameter]));
    std::thread::scope(|scope| {
        let bad = scope.spawn(|| (0..5).filter(|_| matches!(model.unfold(&nothing()), Err(CallError::Limit { .. }))).count());
        let served = [(); 3].map(|()| scope.spawn(|| (0..500).filter(|_| chains(&model.unfold(&good).unwrap()) == 1).count()));
        assert_eq!(served.map(|thread| thread.join().unwrap()), [500; 3]);
        assert_eq!(bad.join().unwrap(), 5);
    });
}

/// `check` loads a bundle at each precision while it holds the first model.
#[test]
fn a_plugin_that_is_in_use_is_not_compiled_again() {
    let runtime = runtime();
    let compile = || runtime.compile("acme", "testee", &Guest::default().wasm()).unwrap();
    let in_use = compile().with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).unwrap();
    compile().counted(|_| Ok::<_, ()>(())).unwrap();
    compile().counted(|_| Err::<(), _>("it was compiled again")).unwrap();
    drop(in_use);
    assert!(compile().counted(|_| Err::<(), _>("")).is_err(), "nobody has it");
}

#[test]
fn more_models_than_instances_still_find_room() {
    let options = RuntimeOptions { instances_max: 4, ..RuntimeOptions::new(Compiler::InProcess) };
    let plugin = Runtime::new(options).unwrap().compile("acme", "testee", &remembering().wasm()).unwrap();
    let models: Vec<_> = (1..=12).map(|value| with_parameter(&plugin, value)).collect();
    for _ in 0..3 {
        for (index, model) in models.iter().enumerate() {
            assert_eq!(chains(&model.unfold(&nothing()).unwrap()), index + 1);
        }
    }
}

#[test]
fn calls_beyond_all_instances_are_told_so() {
    let options = RuntimeOptions { instances_max: 1, ..RuntimeOptions::new(Compiler::InProcess) };
    let slow = Guest::unfolding("(loop $again (br $again)) (unreachable)");
    let plugin = Runtime::new(options).unwrap().compile("acme", "testee", &slow.wasm()).unwrap();
    let model = plugin.with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).unwrap();
    let outcomes = std::thread::scope(|scope| {
        [(); 4].map(|()| scope.spawn(|| model.unfold(&nothing()).unwrap_err())).map(|thread| thread.join().unwrap())
    });
    assert!(outcomes.iter().any(|error| matches!(error, CallError::Limit { .. })), "{outcomes:?}");
    let busy: Vec<_> = outcomes.iter().filter(|error| matches!(error, CallError::Busy { .. })).collect();
    assert!(!busy.is_empty(), "{outcomes:?}");
    assert_eq!(busy[0].to_string(), "plugin `testee` could not be called: all instances are in use");
    assert!(matches!(model.unfold(&nothing()), Err(CallError::Limit { .. })), "the instances came back");
}
