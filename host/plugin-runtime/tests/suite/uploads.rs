//! What is accepted as a plugin, and the sentence that says why something is not.

use std::sync::Arc;
use std::time::Duration;

use cellwright_cell_graph::graph::Growth;
use cellwright_plugin_runtime::{CompileError, Compiler, Defect, Limits, Runtime, RuntimeOptions};

use crate::guest::Guest;
use crate::{nothing, runtime};

fn refused(bytes: &[u8]) -> String {
    match runtime().compile("acme", "testee", bytes) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    }
}

fn component(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

#[test]
fn a_module_without_any_metadata_is_a_plugin() {
    let model = runtime().compile("acme", "testee", &Guest::default().wasm()).unwrap();
    let model = model.with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).unwrap();
    assert_eq!(model.unfold(&nothing()).unwrap(), Growth::default());
}

#[test]
fn what_is_not_wasm_is_refused_with_the_parsers_words() {
    assert_eq!(refused(b""), "the plugin is not valid WebAssembly: it does not begin as a WebAssembly module or component does");
    assert!(refused(b"\0asm\x01\0\0\0\xff").starts_with("the plugin is not valid WebAssembly: "));
    let mut truncated = Guest::default().wasm();
    truncated.truncate(truncated.len() - 3);
    let sentence = refused(&truncated);
    assert!(sentence.starts_with("the plugin is not valid WebAssembly: ") && sentence.contains("offset"), "{sentence}");
}

#[test]
fn other_versions_of_the_abi_are_refused_by_naming_both() {
    let expected = "the plugin speaks cellwright:plugin@0.9.0, and this host serves 0.1.0";
    assert_eq!(refused(&Guest { version: "0.9.0", ..Guest::default() }.wasm()), expected);
    let exported = component(r#"(component (instance $none) (export "cellwright:plugin/unfolding@0.9.0" (instance $none)))"#);
    assert_eq!(refused(&exported), expected);
    let imported = component(
        r#"(component (import "cellwright:plugin/host@0.9.0" (instance)) (instance $none)
            (export "cellwright:plugin/unfolding@0.1.0" (instance $none)))"#,
    );
    assert_eq!(refused(&imported), expected);
}

#[test]
fn foreign_imports_are_refused_by_name() {
    let module = Guest::default().with_import(r#"(import "env" "system" (func (param i32)))"#);
    let what_to_do = "which the host does not offer: build the plugin without that, or put a stub in its place";
    assert_eq!(refused(&module.wasm()), format!("the plugin imports \"system\" from \"env\", {what_to_do}"));
    for import in ["wasi:sockets/tcp@0.2.0", "wasi:http/types@0.2.10", "wasi:cli/stdout@0.3.0", "cellwright:stubs/process@0.1.0"] {
        let component = component(&format!(
            r#"(component (import "{import}" (instance)) (instance $none)
                (export "cellwright:plugin/unfolding@0.1.0" (instance $none)))"#
        ));
        assert_eq!(refused(&component), format!("the plugin imports \"{import}\", {what_to_do}"));
    }
    let unknown = Guest::default().with_import(r#"(import "cellwright:plugin/host@0.1.0" "open" (func (param i32)))"#);
    assert!(refused(&unknown.wasm()).contains("open"), "{}", refused(&unknown.wasm()));
}

#[test]
fn what_is_no_plugin_is_refused_by_what_it_lacks() {
    let expected = "the plugin does not have the interface of a plugin: it exports no cellwright:plugin/unfolding";
    assert_eq!(refused(&wat::parse_str("(module (memory (export \"memory\") 1))").unwrap()), expected);
    assert_eq!(refused(&component("(component)")), expected);
    let without_resume = Guest::default().text().replace("#resume", "#resumes");
    assert!(refused(&wat::parse_str(without_resume).unwrap()).contains("resume"));
    let other_type =
        Guest::default().text().replace("(param i32 i32) (result i32) (i32.const 1024)", "(param i64) (result i32) (i32.const 1024)");
    let sentence = refused(&wat::parse_str(other_type).unwrap());
    assert!(sentence.starts_with("the plugin does not have the interface of a plugin: ") && sentence.contains("describe"), "{sentence}");
    let empty = component(r#"(component (instance $none) (export "cellwright:plugin/unfolding@0.1.0" (instance $none)))"#);
    let sentence = refused(&empty);
    assert!(sentence.starts_with("the plugin does not have the interface of a plugin: ") && sentence.contains("describe"), "{sentence}");
}

#[test]
fn functions_of_the_right_names_and_other_types_are_refused() {
    let other = component(
        r#"(component
            (core module $code (func (export "run") (param i32)))
            (core instance $run (instantiate $code))
            (func $run (param "number" u32) (canon lift (core func $run "run")))
            (instance $all (export "describe" (func $run)) (export "unfold" (func $run)) (export "resume" (func $run)))
            (export "cellwright:plugin/unfolding@0.1.0" (instance $all)))"#,
    );
    let expected = "the plugin does not have the interface of a plugin: its `describe` has other types: ";
    assert!(refused(&other).starts_with(expected), "{}", refused(&other));
}

#[test]
fn extra_exports_are_tolerated() {
    let guest = Guest::default().with_extra(r#"(func (export "init"))"#);
    runtime().compile("acme", "testee", &guest.wasm()).unwrap();
}

#[test]
fn uploads_and_code_have_a_largest_size() {
    let options = || RuntimeOptions { instances_max: 4, ..RuntimeOptions::new(Compiler::InProcess) };
    let wasm = Guest::default().wasm();
    let small = Runtime::new(RuntimeOptions { module_bytes_max: 100, ..options() }).unwrap().compile("acme", "testee", &wasm);
    assert!(matches!(small, Err(CompileError::TooLarge { bytes, bytes_max: 100 }) if bytes == wasm.len()));
    let small = Runtime::new(RuntimeOptions { artifact_bytes_max: 100, ..options() }).unwrap().compile("acme", "testee", &wasm);
    assert!(matches!(small, Err(CompileError::ArtifactTooLarge(100))));
}

#[test]
fn a_memory_that_starts_above_the_limit_is_refused() {
    let guest = Guest { memory: "(memory (export \"memory\") 9000)", ..Guest::default() };
    let refused = runtime().compile("acme", "testee", &guest.wasm());
    let Err(CompileError::Defect(Defect::Uncompilable(sentence))) = refused else { panic!("{refused:?}") };
    assert!(sentence.contains("memory") && sentence.contains("limit"), "{sentence}");
}

#[test]
fn bytes_changed_at_random_are_refused_or_run_and_never_crash() {
    let runtime = runtime();
    let original = Guest::answering(&crate::guest::words(&[4096, 1, 0, 0, 0, 0, 0]), &[0; 64]).wasm();
    let limits = Limits { call_time: Duration::from_millis(2), describe_time: Duration::from_millis(2), ..Limits::default() };
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let (mut refused, mut run) = (0, 0);
    for round in 0..400 {
        let mut bytes = original.clone();
        for _ in 0..=random(3) {
            let position = random(bytes.len());
            bytes[position] ^= 1 << random(8);
        }
        match runtime.compile("acme", "testee", &bytes) {
            Err(CompileError::Crashed(words)) => panic!("round {round}: {words}"),
            Err(_) => refused += 1,
            Ok(plugin) => {
                run += 1;
                let model = plugin.with_parameters(&[], Arc::new(Vec::new()), &limits);
                let _ = model.and_then(|model| model.unfold(&nothing()));
            }
        }
    }
    assert!(refused > 20 && run > 20, "{refused} were refused and {run} ran: the test reaches both");
}
