//! Clocks outside the years 1970 to 9999, which a machine without a battery may have: everything works, and nothing panics.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use cellwright_tests::binary::{Ran, Running, cellwright_in, done, refused};
use cellwright_tests::server::{Answer, request};
use tempfile::TempDir;

const CERTIFICATE: &str = "tests/tests/suite/http/tls/certificate.pem";
const KEY: &str = "tests/tests/suite/http/tls/key.pem";

/// Stands before the system's function of that name in a program that is started with it.
const SHIM: &str = "
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    if (clock == CLOCK_REALTIME) time->tv_sec += OFFSET;
    return failed;
}
";

fn shim(folder: &Path, offset: i64) -> String {
    let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
    std::fs::write(&source, SHIM).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", &format!("-DOFFSET={offset}LL"), "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().unwrap().success());
    library.to_str().unwrap().to_owned()
}

/// A server whose clock is off, and where it is.
fn serve(shim: &str, data: &str, more: &[&str]) -> (Running, String) {
    let arguments = [&["serve", "--listen", "127.0.0.1:0", "--data", data, "--log", "debug"], more].concat();
    let running = Running::start_by(&format!("LD_PRELOAD={shim} exec \"$0\" \"$@\""), &arguments);
    let mut url = String::new();
    loop {
        let line = running.line_of_stderr();
        assert!(!line.contains("panicked"), "{line}");
        if let Some(address) = line.strip_prefix("listening on ") {
            url = address.split_whitespace().next().unwrap().to_owned();
        }
        if line.starts_with("ready after") {
            return (running, url);
        }
    }
}

fn assert_no_panic(running: &Running) {
    let said = running.rest_of_stderr();
    assert!(said.iter().all(|line| !line.contains("panicked")), "{said:#?}");
}

#[test]
fn a_clock_outside_the_calendar_panics_nothing() {
    for (offset, date) in [(-3_000_000_000, "Thu, 01 Jan 1970 00:00:00 GMT"), (260_000_000_000, "Fri, 31 Dec 9999 23:59:59 GMT")] {
        let folder = TempDir::new().unwrap();
        let (shim, data) = (shim(folder.path(), offset), folder.path().join("data"));
        let data = data.to_str().unwrap();
        let off = |arguments: &[&str]| -> Ran { cellwright_in(&[("LD_PRELOAD", &shim)], arguments, "") };
        let secret = done(off(&["keys", "create", "--admin", "--data", data]));
        let secret = secret.lines().next().unwrap();

        // Nobody listens for its traces.
        let (running, url) = serve(&shim, data, &["--otlp-endpoint", "http://127.0.0.1:9"]);
        let ask = |arguments: &[&str]| off(&[arguments, &["--server", &url, "--key", secret]].concat());
        done(ask(&["push", "examples/digits"]));
        done(ask(&["infer", "digits", "--input", "examples/digits/samples.jsonl"]));
        done(ask(&["tenants", "create", "acme"]));
        done(ask(&["keys", "create", "--tenant", "acme", "--scope", "infer"]));
        for list in ["models", "tenants", "keys"] {
            done(ask(&[list, "list"]));
        }
        let raw = request("GET", "/metrics", &[("authorization", &format!("Bearer {secret}"))], b"");
        let mut stream = std::net::TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        std::io::Write::write_all(&mut stream, &raw).unwrap();
        let answer = Answer::read(&mut std::io::BufReader::new(stream)).unwrap().unwrap();
        assert_eq!((answer.status, answer.header("date")), (200, Some(date)));
        assert_no_panic(&running);
        drop(running);

        let (running, url) = serve(&shim, data, &["--tls-certificate", CERTIFICATE, "--tls-key", KEY]);
        let models = ["models", "list", "--server", &url, "--key", secret, "--ca", CERTIFICATE];
        done(cellwright_in(&[], &models, ""));
        let sentence = refused(off(&models));
        assert!(sentence.contains("certificate") && sentence.lines().count() == 1, "{sentence}");
        assert_no_panic(&running);
    }
}
