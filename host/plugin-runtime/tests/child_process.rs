//! Compiling in a child process, with its limits.
//!
//! The test is its own compiler: started with [`COMPILE`] it compiles, so it has a `main` instead of the usual harness.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may stop at what it does not expect, and this one has no harness to print for it"
)]

#[path = "suite/guest.rs"]
#[expect(dead_code, reason = "the other tests use the rest of it")]
mod guest;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_plugin_runtime::{
    ChildCompiler, CompileError, Compiler, Defect, Limits, Plugin, Runtime, RuntimeOptions, compile_worker_main,
};
use guest::Guest;
use rustix::process::{Resource, Rlimit};

const COMPILE: &str = "compile-plugin";
/// Modes in which this program is a bad compiler.
const SILENT: &str = "silent";
const TALKATIVE: &str = "talkative";
const SLEEPING: &str = "sleeping";
const PANICKING: &str = "panicking";
const OTHER: &str = "other";
/// One that tries afterwards what hostile code would do.
const ESCAPING: &str = "escaping";

const LIMIT: Rlimit = Rlimit { current: Some(0), maximum: Some(0) };

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(COMPILE) => return compile_worker_main(),
        Some(SILENT) => return ExitCode::SUCCESS,
        Some(TALKATIVE) => loop {
            if std::io::Write::write_all(&mut std::io::stdout(), &[0; 65536]).is_err() {
                return ExitCode::FAILURE;
            }
        },
        Some(SLEEPING) => std::thread::sleep(Duration::from_secs(60)),
        // An answer that claims to be code.
        Some(OTHER) => {
            let answered = std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
                .and_then(|_| std::io::Write::write_all(&mut std::io::stdout(), b"\0code of another version"));
            return if answered.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Some(PANICKING) => panic!("lost my way"),
        Some(ESCAPING) => {
            let compiled = compile_worker_main();
            let escaped: Vec<&str> = escapes().into_iter().filter(|(_, refused)| !refused).map(|(what, _)| what).collect();
            assert!(escaped.is_empty(), "the compiler could still {escaped:?}");
            assert_eq!(std::thread::spawn(|| vec![1_u8; 1 << 20].len()).join().unwrap(), 1 << 20);
            return compiled;
        }
        _ => {}
    }
    let tests: [(&str, fn()); 11] = [
        ("a_plugin_compiled_by_a_child_runs", a_plugin_compiled_by_a_child_runs),
        ("a_plugin_is_compiled_under_limits_of_the_shell", a_plugin_is_compiled_under_limits_of_the_shell),
        ("defects_are_named_as_if_compiled_here", defects_are_named_as_if_compiled_here),
        ("a_compiler_that_takes_too_long_is_ended", a_compiler_that_takes_too_long_is_ended),
        ("a_compilation_that_takes_too_long_is_ended", a_compilation_that_takes_too_long_is_ended),
        ("a_compilation_that_takes_too_much_memory_is_ended", a_compilation_that_takes_too_much_memory_is_ended),
        ("a_compiler_that_says_too_much_is_ended", a_compiler_that_says_too_much_is_ended),
        ("a_compiler_that_crashes_or_is_missing_is_said_to", a_compiler_that_crashes_or_is_missing_is_said_to),
        ("code_that_is_not_for_this_host_is_no_defect_of_the_plugin", code_that_is_not_for_this_host_is_no_defect_of_the_plugin),
        ("more_compilations_than_turns_all_end", more_compilations_than_turns_all_end),
        ("a_compiler_has_no_way_out", a_compiler_has_no_way_out),
    ];
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for (name, test) in tests.into_iter().filter(|(name, _)| name.contains(&filter)) {
        let begin = Instant::now();
        test();
        println!("test {name} ... ok ({:.2} s)", begin.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

/// What the compiler's process may not do, and whether the system refuses it.
fn escapes() -> Vec<(&'static str, bool)> {
    fn is_refused<T>(tried: std::io::Result<T>) -> bool {
        tried.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    }
    let server = rustix::process::getppid().unwrap();
    vec![
        ("open a socket", is_refused(std::net::TcpListener::bind("127.0.0.1:0"))),
        ("open a local socket", is_refused(std::os::unix::net::UnixDatagram::unbound())),
        ("read a file", is_refused(std::fs::File::open("/proc/self/status"))),
        ("write a file", is_refused(std::fs::File::create("/tmp/cellwright-escaped"))),
        ("start a program", is_refused(std::process::Command::new("/bin/true").spawn())),
        ("signal its server", is_refused(rustix::process::test_kill_process(server).map_err(Into::into))),
        ("change its server's limits", is_refused(rustix::process::prlimit(Some(server), Resource::Core, LIMIT).map_err(Into::into))),
    ]
}

/// In the compiler itself, after it has compiled.
fn a_compiler_has_no_way_out() {
    if !std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        return println!("skipped: this system has no seccomp");
    }
    compile(child(ESCAPING), &Guest::default().wasm()).unwrap();
}

fn child(mode: &str) -> ChildCompiler {
    ChildCompiler::new(std::env::current_exe().unwrap(), vec![mode.to_owned()])
}

fn compile(child: ChildCompiler, bytes: &[u8]) -> Result<Plugin, CompileError> {
    Runtime::new(RuntimeOptions { instances_max: 4, ..RuntimeOptions::new(Compiler::Child(child)) })
        .unwrap()
        .compile("acme", "testee", bytes)
}

/// A valid plugin that takes a compiler long and much: functions of many operations that depend on one another.
fn expensive(functions: usize, operations: usize) -> Vec<u8> {
    let mut extra = String::new();
    for function in 0..functions {
        write!(extra, "(func (export \"f{function}\") (param i64 i64) (result i64)").unwrap();
        for operation in 0..operations {
            let constant = function * operations + operation + 1;
            write!(extra, "(local.set 0 (i64.xor (i64.mul (local.get 0) (i64.const {constant})) (i64.rotl (local.get 1) (local.get 0))))")
                .unwrap();
            write!(extra, "(if (i64.eqz (local.get 0)) (then (local.set 1 (i64.add (local.get 0) (local.get 1)))))").unwrap();
        }
        extra.push_str("(local.get 0))");
    }
    Guest::default().with_extra(&extra).wasm()
}

fn a_plugin_compiled_by_a_child_runs() {
    let plugin = compile(child(COMPILE), &Guest::default().wasm()).unwrap();
    let model = plugin.with_parameters(&[], Arc::new(Vec::new()), &Limits::default()).unwrap();
    assert!(model.unfold(&Arc::default()).unwrap().chains.is_empty());
}

/// Which are lower than those of the compiler, and cannot be raised.
fn a_plugin_is_compiled_under_limits_of_the_shell() {
    let limited = "ulimit -d 1000000 && ulimit -t 50 && ulimit -v 16000000 && exec \"$0\" a_plugin_compiled_by_a_child_runs";
    let output = std::process::Command::new("sh").args(["-c", limited]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("a_plugin_compiled_by_a_child_runs ... ok"), "{output:?}");
}

fn defects_are_named_as_if_compiled_here() {
    let here = Runtime::new(RuntimeOptions { instances_max: 4, ..RuntimeOptions::new(Compiler::InProcess) }).unwrap();
    for bytes in [
        b"no wasm".to_vec(),
        Guest { version: "7.0.0", ..Guest::default() }.wasm(),
        Guest::default().with_import(r#"(import "env" "system" (func))"#).wasm(),
        wat::parse_str("(module)").unwrap(),
    ] {
        let there = compile(child(COMPILE), &bytes).unwrap_err();
        assert!(matches!(there, CompileError::Defect(_)), "{there}");
        assert_eq!(there.to_string(), here.compile("acme", "testee", &bytes).unwrap_err().to_string());
    }
}

fn a_compiler_that_takes_too_long_is_ended() {
    let begin = Instant::now();
    let error = compile(ChildCompiler { time: Duration::from_millis(300), ..child(SLEEPING) }, &Guest::default().wasm()).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(20));
    assert_eq!(error.to_string(), "compiling the plugin took longer than 0.3 s");
}

fn a_compilation_that_takes_too_long_is_ended() {
    let bytes = expensive(400, 200);
    let begin = Instant::now();
    let error = compile(ChildCompiler { time: Duration::from_millis(200), ..child(COMPILE) }, &bytes).unwrap_err();
    assert!(matches!(error, CompileError::OutOfTime(_)), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20));
}

fn a_compilation_that_takes_too_much_memory_is_ended() {
    let bytes = expensive(4, 20_000);
    let error = compile(ChildCompiler { memory_bytes: 24 << 20, ..child(COMPILE) }, &bytes).unwrap_err();
    assert_eq!(error.to_string(), "compiling the plugin took more than 25165824 bytes of memory");
    compile(child(COMPILE), &expensive(4, 200)).unwrap();
}

fn a_compiler_that_says_too_much_is_ended() {
    let options =
        RuntimeOptions { artifact_bytes_max: 1 << 20, instances_max: 4, ..RuntimeOptions::new(Compiler::Child(child(TALKATIVE))) };
    let error = Runtime::new(options).unwrap().compile("acme", "testee", &Guest::default().wasm()).unwrap_err();
    assert!(matches!(error, CompileError::ArtifactTooLarge(1_048_576)), "{error}");
}

fn a_compiler_that_crashes_or_is_missing_is_said_to() {
    let error = compile(child(PANICKING), &Guest::default().wasm()).unwrap_err();
    assert!(matches!(&error, CompileError::Crashed(words) if words.contains("lost my way")), "{error}");
    let error = compile(child(SILENT), &Guest::default().wasm()).unwrap_err();
    assert_eq!(error.to_string(), "the compiler ended without an answer: what it wrote is no answer");
    let missing = ChildCompiler::new("/does/not/exist".into(), vec![]);
    let error = compile(missing, &Guest::default().wasm()).unwrap_err();
    assert!(error.to_string().starts_with("the compiler /does/not/exist cannot be run: "), "{error}");
}

fn code_that_is_not_for_this_host_is_no_defect_of_the_plugin() {
    let error = compile(child(OTHER), &Guest::default().wasm()).unwrap_err();
    assert!(matches!(error, CompileError::OtherCode(_)) && error.to_string().ends_with(": restart the server"), "{error}");
    let large = Guest { memory: "(memory (export \"memory\") 9000)", ..Guest::default() };
    let error = compile(child(COMPILE), &large.wasm()).unwrap_err();
    assert!(matches!(error, CompileError::Defect(Defect::Uncompilable(_))), "{error}");
}

fn more_compilations_than_turns_all_end() {
    let options = RuntimeOptions { compilations_max: 1, instances_max: 4, ..RuntimeOptions::new(Compiler::Child(child(COMPILE))) };
    let runtime = Runtime::new(options).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let guest = Guest::unfolding(format!("(i32.const {})", 1024 + number * 4));
            let runtime = &runtime;
            scope.spawn(move || runtime.compile_for(("testee", &guest.wasm()), ("acme", number % 3), &|| false).unwrap());
        }
    });
}
