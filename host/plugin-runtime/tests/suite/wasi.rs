//! What languages' runtimes find in place of WASI: as a core module by preview 1, and as a
//! component by WASI 0.2.

use std::sync::Arc;

use cellwright_plugin_runtime::{CallError, Limits, PluginModel};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::guest::{EMPTY_ANSWER, Guest};
use crate::{model, nothing, runtime};

const FD_WRITE: &str = r#"(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))"#;
const POLL: &str = r#"(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))"#;
const CLOCK: &str = r#"(import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))"#;
const RANDOM: &str = r#"(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))"#;
const EXIT: &str = r#"(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;

/// A module with these imports, whose `unfold` is that body.
fn guest(imports: &[&str], body: &str) -> Guest {
    imports.iter().fold(Guest::unfolding(format!("{body} {EMPTY_ANSWER}")), |guest, import| guest.with_import(import))
}

/// What WASI 0.2 says of the functions that the guests below import.
const WASI_WIT: &str = "package test:guest@0.1.0;
package wasi:io@0.2.3 {
  interface error { resource error; }
  interface poll { resource pollable { block: func(); } poll: func(in: list<borrow<pollable>>) -> list<u32>; }
  interface streams {
    use error.{error};
    use poll.{pollable};
    variant stream-error { last-operation-failed(error), closed }
    resource input-stream { blocking-read: func(len: u64) -> result<list<u8>, stream-error>; }
    resource output-stream {
      check-write: func() -> result<u64, stream-error>;
      write: func(contents: list<u8>) -> result<_, stream-error>;
      blocking-flush: func() -> result<_, stream-error>;
      subscribe: func() -> pollable;
    }
  }
}
package wasi:cli@0.2.3 {
  interface stdin { use wasi:io/streams@0.2.3.{input-stream}; get-stdin: func() -> input-stream; }
  interface stdout { use wasi:io/streams@0.2.3.{output-stream}; get-stdout: func() -> output-stream; }
  interface environment { get-arguments: func() -> list<string>; change-cwd: func(); }
  interface exit { exit: func(status: result); }
}
package wasi:clocks@0.2.3 {
  interface monotonic-clock {
    use wasi:io/poll@0.2.3.{pollable};
    now: func() -> u64;
    subscribe-duration: func(when: u64) -> pollable;
  }
  interface wall-clock { record datetime { seconds: u64, nanoseconds: u32 } now: func() -> datetime; }
}
package wasi:random@0.2.3 {
  interface random { get-random-bytes: func(len: u64) -> list<u8>; get-random-u64: func() -> u64; }
}
package wasi:filesystem@0.2.3 {
  interface types { resource descriptor; }
  interface preopens { use types.{descriptor}; get-directories: func() -> list<tuple<descriptor, string>>; }
}
world guest {
  include cellwright:plugin/plugin@0.1.0;
  import wasi:cli/stdin@0.2.3;
  import wasi:cli/stdout@0.2.3;
  import wasi:cli/environment@0.2.3;
  import wasi:cli/exit@0.2.3;
  import wasi:clocks/monotonic-clock@0.2.3;
  import wasi:clocks/wall-clock@0.2.3;
  import wasi:random/random@0.2.3;
  import wasi:filesystem/preopens@0.2.3;
}";

/// The import of a function of WASI 0.2, called `$` and the name behind the dot.
fn import(interface: &str, name: &str, signature: &str) -> String {
    let short = name.rsplit(['.', ']']).next().unwrap();
    format!(r#"(import "wasi:{interface}@0.2.3" "{name}" (func ${short} {signature}))"#)
}

/// The component of a module that imports WASI 0.2.
fn component(guest: &Guest) -> Vec<u8> {
    let mut module = guest.wasm();
    let mut resolve = Resolve::default();
    resolve.push_str("plugin.wit", include_str!("../../../../guest-sdk/wit/plugin.wit")).unwrap();
    let package = resolve.push_str("guest.wit", WASI_WIT).unwrap();
    let world = resolve.select_world(&[package], Some("guest")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
}

fn described(wasm: &[u8]) -> PluginModel {
    runtime().compile("acme", "testee", wasm).unwrap().with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).unwrap()
}

fn failure(model: &PluginModel) -> String {
    model.unfold(&nothing()).unwrap_err().to_string()
}

fn trap_unless(condition: &str) -> String {
    format!("(if (i32.eqz {condition}) (then (unreachable)))")
}

/// A module and a component that print these bytes so many times, and trap.
fn printing(bytes: &[u8], times: u32) -> [PluginModel; 2] {
    let data: String = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let data = format!(r#"(data (i32.const 4096) "{data}") (global $printed (mut i32) (i32.const 0))"#);
    let length = bytes.len();
    let again = |print: &str| {
        format!(
            "(loop $again {print} (global.set $printed (i32.add (global.get $printed) (i32.const 1)))
            (br_if $again (i32.lt_u (global.get $printed) (i32.const {times})))) (unreachable)"
        )
    };
    // Two pieces, to the standard output and error by turns.
    let halves = [(3000, 4096), (3004, length / 2), (3008, 4096 + length / 2), (3012, length - length / 2)];
    let halves = halves.map(|(at, word)| format!("(i32.store (i32.const {at}) (i32.const {word}))")).concat();
    let stream = "(i32.add (i32.const 1) (i32.and (global.get $printed) (i32.const 1)))";
    let print = format!("(drop (call $write {stream} (i32.const 3000) (i32.const 2) (i32.const 3016)))");
    let counted = trap_unless(&format!("(i32.eq (i32.load (i32.const 3016)) (i32.const {length}))"));
    let module = guest(&[FD_WRITE], &format!("{halves} {}", again(&format!("{print} {counted}")))).with_extra(&data);
    let imports = [
        import("cli/stdout", "get-stdout", "(result i32)"),
        import("io/streams", "[method]output-stream.write", "(param i32 i32 i32 i32)"),
    ];
    let print = format!("(call $write (global.get $out) (i32.const 4096) (i32.const {length}) (i32.const 3016))");
    let body = format!("(global.set $out (call $get-stdout)) {}", again(&print));
    let data = format!("{data} (global $out (mut i32) (i32.const 0))");
    [model(&module), described(&component(&guest(&imports.each_ref().map(String::as_str), &body).with_extra(&data)))]
}

#[test]
fn printed_lines_become_notes() {
    for model in printing(b"first\n\n  second\r\nno end", 2) {
        let error = failure(&model);
        assert!(error.ends_with("(it noted: first; second; no endfirst; second; no end)"), "{error}");
        assert!(failure(&model).ends_with(&error[error.len() - 60..]), "what one call printed reached another");
    }
}

#[test]
fn what_a_call_prints_is_bounded() {
    for model in printing(&b"chatter ".repeat(1 << 13), 50) {
        let CallError::Failed { site, .. } = model.unfold(&nothing()).unwrap_err() else { panic!() };
        assert!(matches!(&site.notes[..], [note] if note.len() < 700 && note.starts_with("chatter chatter")), "{:?}", site.notes);
    }
    for model in printing(b"a\nb\n", 1000) {
        let CallError::Failed { site, .. } = model.unfold(&nothing()).unwrap_err() else { panic!() };
        assert_eq!(site.notes, ["a", "b"].repeat(16));
    }
}

#[test]
fn the_clock_moves_with_each_reading_and_each_sleep_and_nothing_waits() {
    let is = |time: u64| trap_unless(&format!("(i64.eq (i64.load (i32.const 3000)) (i64.const {time}))"));
    let read = "(drop (call $time (i32.const 0) (i64.const 1) (i32.const 3000)))";
    // One timer of an hour: {5, kind 0, clock, time at 24, until at 40}. The event says 5, no
    // error, kind 0.
    let sleep = format!(
        "(i64.store (i32.const 4096) (i64.const 5)) (i64.store (i32.const 4120) (i64.const 3600000000000))
        (i64.store (i32.const 5008) (i64.const -1))
        (if (call $poll (i32.const 4096) (i32.const 5000) (i32.const 1) (i32.const 3008)) (then (unreachable)))
        {} {} {}",
        trap_unless("(i32.eq (i32.load (i32.const 3008)) (i32.const 1))"),
        trap_unless("(i64.eq (i64.load (i32.const 5000)) (i64.const 5))"),
        trap_unless("(i64.eqz (i64.load (i32.const 5008)))")
    );
    let body = format!("{read} {} {read} {} {sleep} {read} {}", is(1_000_000), is(2_000_000), is(3_600_003_000_000));
    let module = model(&guest(&[CLOCK, POLL], &body));

    let imports = [
        import("clocks/monotonic-clock", "now", "(result i64)"),
        import("clocks/monotonic-clock", "subscribe-duration", "(param i64) (result i32)"),
        import("io/poll", "[method]pollable.block", "(param i32)"),
        import("io/poll", "poll", "(param i32 i32 i32)"),
    ];
    let is = |time: u64| trap_unless(&format!("(i64.eq (call $now) (i64.const {time}))"));
    let body = format!(
        "{} {} (i32.store (i32.const 3000) (call $subscribe-duration (i64.const 3600000000000))) (call $block (i32.load (i32.const 3000)))
        (call $poll (i32.const 3000) (i32.const 1) (i32.const 3008)) {} {}",
        is(1_000_000),
        is(2_000_000),
        trap_unless("(i32.eq (i32.load (i32.const 3012)) (i32.const 1))"),
        is(3_600_003_000_000)
    );
    let component = described(&component(&guest(&imports.each_ref().map(String::as_str), &body)));
    for model in [module, component] {
        model.unfold_fresh(&nothing()).unwrap();
        model.unfold_fresh(&nothing()).unwrap();
    }
}

#[test]
fn randomness_is_the_same_for_everyone() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let expected: [u8; 16] = std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    });
    let (first, second) = expected.split_at(8);
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    let is = |value: &str, bytes| trap_unless(&format!("(i64.eq {value} (i64.const {}))", number(bytes)));
    let get = "(drop (call $random (i32.const 3000) (i32.const 8)))";
    let stored = "(i64.load (i32.const 3000))";
    let module = model(&guest(&[RANDOM], &format!("{get} {} {get} {}", is(stored, first), is(stored, second))));
    let imports =
        [import("random/random", "get-random-bytes", "(param i64 i32)"), import("random/random", "get-random-u64", "(result i64)")];
    let get = "(call $get-random-bytes (i64.const 8) (i32.const 3000))";
    let body = format!("{get} {} {}", is("(i64.load (i32.load (i32.const 3000)))", first), is("(call $get-random-u64)", second));
    let component = described(&component(&guest(&imports.each_ref().map(String::as_str), &body)));
    for model in [module, component] {
        model.unfold_fresh(&nothing()).unwrap();
    }
    let greedy = guest(&[&imports[0]], "(call $get-random-bytes (i64.const -1) (i32.const 3000))");
    let error = failure(&described(&self::component(&greedy)));
    assert!(error.contains("it asked for 18446744073709551615 random bytes, more than its memory of 67108864 bytes"), "{error}");
}

#[test]
fn there_is_no_way_out() {
    let module = model(&guest(&[EXIT], "(call $exit (i32.const 1))"));
    let body = "(call $exit (i32.const 1))";
    let component = described(&component(&guest(&[&import("cli/exit", "exit", "(param i32)")], body)));
    for model in [module, component] {
        let sentence = "plugin `testee` failed in unfold: it left its process with code 1, and a plugin has none to leave";
        assert_eq!(failure(&model), sentence);
    }
}

#[test]
fn preview_1_has_no_files_arguments_or_environment() {
    let import = |(name, signature): &(&str, &str)| format!(r#"(import "wasi_snapshot_preview1" "{name}" (func ${name} {signature}))"#);
    let functions = [
        ("args_sizes_get", "(param i32 i32) (result i32)"),
        ("environ_get", "(param i32 i32) (result i32)"),
        ("fd_prestat_get", "(param i32 i32) (result i32)"),
        ("fd_read", "(param i32 i32 i32 i32) (result i32)"),
        ("fd_fdstat_get", "(param i32 i32) (result i32)"),
        ("path_open", "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)"),
        ("sock_shutdown", "(param i32 i32) (result i32)"),
        ("proc_raise", "(param i32) (result i32)"),
    ]
    .map(|function| import(&function));
    let gives = |call: &str, error: u32| trap_unless(&format!("(i32.eq {call} (i32.const {error}))"));
    let four = |name: &str, fd: u32| format!("(call ${name} (i32.const {fd}) (i32.const 0) (i32.const 0) (i32.const 3000))");
    let two = |name: &str, fd: u32| format!("(call ${name} (i32.const {fd}) (i32.const 3000))");
    let zeros = "(i32.const 0) ".repeat(5) + &"(i64.const 0) ".repeat(2) + &"(i32.const 0) ".repeat(2);
    let body = [
        "(i32.store (i32.const 3000) (i32.const 7)) (drop (call $args_sizes_get (i32.const 3000) (i32.const 3004)))".to_owned(),
        trap_unless("(i32.eqz (i32.load (i32.const 3000)))"),
        "(drop (call $environ_get (i32.const 0) (i32.const 0)))".to_owned(),
        gives(&four("write", 0), 8),
        gives(&four("write", 3), 8),
        gives(&two("fd_prestat_get", 3), 8),
        gives(&format!("(call $path_open {zeros})"), 8),
        gives(&two("sock_shutdown", 3), 8),
        gives("(call $proc_raise (i32.const 1))", 52),
        gives(&four("poll", 0), 28),
        // The standard input is empty.
        "(i32.store (i32.const 3000) (i32.const 7))".to_owned(),
        gives(&four("fd_read", 1), 8),
        gives(&four("fd_read", 0), 0),
        trap_unless("(i32.eqz (i32.load (i32.const 3000)))"),
        // A character device that cannot be moved in: C's library prints each line as it ends.
        gives(&two("fd_fdstat_get", 3), 8),
        gives(&two("fd_fdstat_get", 1), 0),
        trap_unless("(i32.eq (i32.load8_u (i32.const 3000)) (i32.const 2))"),
        trap_unless("(i64.eqz (i64.and (i64.load (i32.const 3008)) (i64.const 0x24)))"),
    ];
    let imports: Vec<&str> = functions.iter().map(String::as_str).chain([FD_WRITE, POLL]).collect();
    model(&guest(&imports, &body.concat())).unfold(&nothing()).unwrap();
}

#[test]
fn a_component_has_no_files_arguments_or_input() {
    let imports = [
        import("cli/environment", "get-arguments", "(param i32)"),
        import("filesystem/preopens", "get-directories", "(param i32)"),
        import("cli/stdin", "get-stdin", "(result i32)"),
        import("io/streams", "[method]input-stream.blocking-read", "(param i32 i64 i32)"),
        import("clocks/wall-clock", "now", "(param i32)"),
    ];
    let none = |list: &str| {
        format!(
            "(i32.store (i32.const 3004) (i32.const 7)) ({list} (i32.const 3000)) {}",
            trap_unless("(i32.eqz (i32.load (i32.const 3004)))")
        )
    };
    let body = [
        none("call $get-arguments"),
        none("call $get-directories"),
        // An error, and of these the second: closed.
        "(call $blocking-read (call $get-stdin) (i64.const 9) (i32.const 3000))".to_owned(),
        trap_unless("(i32.and (i32.load8_u (i32.const 3000)) (i32.load8_u (i32.const 3004)))"),
        "(call $now (i32.const 3000))".to_owned(),
        trap_unless("(i64.eqz (i64.load (i32.const 3000)))"),
        trap_unless("(i32.eq (i32.load (i32.const 3008)) (i32.const 1000000))"),
    ];
    described(&component(&guest(&imports.each_ref().map(String::as_str), &body.concat()))).unfold(&nothing()).unwrap();
}

#[test]
fn handles_that_are_never_dropped_end_the_call() {
    let get = import("cli/stdout", "get-stdout", "(result i32)");
    let release = r#"(import "wasi:io/streams@0.2.3" "[resource-drop]output-stream" (func $drop (param i32)))"#;
    let keeping = guest(&[&get], "(loop $again (drop (call $get-stdout)) (br $again))");
    let error = failure(&described(&component(&keeping)));
    assert!(error.ends_with("it holds 1024 handles of streams and timers: drop them after use"), "{error}");
    let dropping = "(local $n i32) (loop $again (call $drop (call $get-stdout)) (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $again (i32.lt_u (local.get $n) (i32.const 3000))))";
    described(&component(&guest(&[&get, release], dropping))).unfold(&nothing()).unwrap();
}

#[test]
fn a_function_without_a_stand_in_is_named() {
    let guest = guest(&[&import("cli/environment", "change-cwd", "")], "(call $change-cwd)");
    let sentence = "it called `change-cwd` of wasi:cli/environment@0.2.3, which does nothing in a plugin: build it without that";
    assert_eq!(failure(&described(&component(&guest))), format!("plugin `testee` failed in unfold: {sentence}"));
}

#[test]
fn functions_of_preview_1_with_signatures_of_their_own_are_refused() {
    for signature in ["(param i32 i32) (result i64)", "(param i64 i32) (result i32)", "(param f32 i32) (result i32)"] {
        let import = format!(r#"(import "wasi_snapshot_preview1" "random_get" (func {signature}))"#);
        let refused = runtime().compile("acme", "testee", &guest(&[&import], "").wasm()).unwrap_err().to_string();
        assert!(refused.ends_with("imports wasi_snapshot_preview1.random_get with a signature that WASI does not give it"), "{refused}");
    }
}
