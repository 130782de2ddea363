//! The verbs that serve and that speak to a server, as a person would use them one after the other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use cellwright_tests::binary::{Ran, Running, cellwright};
use serde_json::Value;
use tempfile::TempDir;

/// A server on a free port, and where it is.
struct Server {
    running: Running,
    url: String,
}

impl Server {
    fn start(data: &Path, more: &[&str]) -> Self {
        let data = data.to_str().unwrap();
        let running = Running::start(&[&["serve", "--listen", "127.0.0.1:0", "--data", data], more].concat());
        let mut url = String::new();
        loop {
            let line = running.line_of_stderr();
            if let Some(address) = line.strip_prefix("listening on ") {
                url = address.split_whitespace().next().unwrap().to_owned();
            }
            if line.starts_with("ready after") {
                return Self { running, url };
            }
        }
    }

    fn ask(&self, arguments: &[&str]) -> Ran {
        self.ask_with(arguments, "")
    }

    fn ask_with(&self, arguments: &[&str], stdin: &str) -> Ran {
        cellwright(&[arguments, &["--server", &self.url]].concat(), stdin)
    }
}

fn done(ran: Ran) -> String {
    assert_eq!(ran.status, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    ran.stdout
}

fn refused(ran: Ran) -> String {
    assert_eq!(ran.status, Some(1), "{}\n{}", ran.stdout, ran.stderr);
    ran.stderr
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_model_is_pushed_asked_switched_and_deleted() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    assert_eq!(done(server.ask(&["models"])), "there are no models; `cellwright push FOLDER` brings one\n");
    let pushed = json(&done(server.ask(&["push", "examples/digits", "--json"])));
    assert_eq!((&pushed["version"], &pushed["activated"], &pushed["existed"]), (&1.into(), &true.into(), &false.into()));
    assert!(done(server.ask(&["push", "examples/digits"])).starts_with("digits version 1 was there before; it serves now\n"));

    let samples = std::fs::read_to_string("../examples/digits/samples.jsonl").unwrap();
    let here = done(cellwright(&["run", "examples/digits", "--input", "-"], &samples));
    for form in [&["infer", "digits", "--input", "-"][..], &["infer", "digits/1", "--input", "-", "--binary"]] {
        let there = done(server.ask_with(form, &samples));
        for (line, other) in there.lines().zip(here.lines()) {
            let (mut line, mut other) = (json(line), json(other));
            assert_eq!(line["model_version"].take(), "1");
            // The server answers as the engine does in one process, bit for bit.
            other["model_version"].take();
            assert_eq!(line, other);
        }
        assert_eq!(there.lines().count(), here.lines().count());
    }
    let wrong = server.ask_with(
        &["infer", "digits", "--input", "-"],
        "{\"inputs\":[]}\n{\"id\":\"x\",\"inputs\":[{\"name\":\"y\",\"datatype\":\"FP32\",\"shape\":[1],\"data\":[1]}]}\n",
    );
    assert_eq!(wrong.stdout.lines().count(), 2);
    assert!(json(&wrong.stdout)["error"].as_str().unwrap().contains("`y`"), "{}", wrong.stdout);
    assert!(refused(wrong).contains("2 requests failed"));

    let sentence = refused(server.ask(&["models", "activate", "digits", "7"]));
    assert!(sentence.contains("model `digits` has no version 7"), "{sentence}");
    done(server.ask(&["models", "unload", "digits"]));
    assert!(done(server.ask(&["models"])).contains("unloaded"));
    done(server.ask(&["models", "load", "digits"]));
    done(server.ask(&["models", "delete", "digits"]));
    assert!(refused(server.ask(&["models", "show", "digits"])).contains("there is no model `digits`"));
    drop(server.running);
}

#[test]
fn texts_are_streamed_in_parts() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    done(server.ask(&["push", "examples/dates", "--name", "iso"]));
    let parts = done(server.ask_with(&["infer", "iso", "--input", "-", "--stream"], "{\"text\":\"28 agosto 1908\"}\n"));
    let texts = parts.lines().map(|line| json(line)["text"].clone()).map(|text| match text {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect::<String>(),
        text => text.as_str().unwrap_or_default().to_owned(),
    });
    assert_eq!(texts.collect::<String>(), "1908-08-28");
    assert!(parts.lines().count() > 1, "{parts}");
}

#[test]
fn keys_are_made_offline_and_asked_for_from_then_on() {
    let data = TempDir::new().unwrap();
    let folder = data.path().to_str().unwrap();
    let secret = done(cellwright(&["keys", "create", "--admin", "--data", folder], "")).lines().next().unwrap().to_owned();
    let server = Server::start(data.path(), &[]);
    assert!(refused(server.ask(&["models"])).contains("(status 401)"));
    done(server.ask(&["models", "--key", &secret]));
    done(server.ask(&["tenants", "create", "acme", "--weight", "3", "--key", &secret]));
    let key = json(&done(server.ask(&["keys", "create", "--tenant", "acme", "--scope", "infer", "--json", "--key", &secret])));
    let infer_only = key["secret"].as_str().unwrap();
    assert!(refused(server.ask(&["push", "examples/digits", "--key", infer_only])).contains("(status 403)"));
    let in_use = refused(cellwright(&["keys", "list", "--data", folder], ""));
    assert!(in_use.contains("a running server is asked with `--server URL`"), "{in_use}");
    done(server.ask(&["keys", "revoke", key["key"]["id"].as_str().unwrap(), "--key", &secret]));
    assert!(refused(server.ask(&["models", "--key", infer_only])).contains("(status 401)"));
}

#[test]
fn settings_have_one_precedence() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("cellwright.toml");
    std::fs::write(
        &file,
        "listen = [\"127.0.0.1:7001\"]\npolicy = \"graph:7\"\nworkers = [\"cpu:threads=2\"]\notlp_endpoint = \"http://localhost:4318\"\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let printed = done(cellwright(&["serve", "--config", file, "--policy", "graph:9", "--data", "d", "--print-config"], ""));
    let line = |name: &str| printed.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for (name, value, source) in [
        ("listen", "[\"127.0.0.1:7001\"]", "file"),
        ("policy", "\"graph:9\"", "flag"),
        ("workers", "[\"cpu:threads=2\"]", "file"),
        ("drain_seconds", "30", "default"),
        ("otlp_endpoint", "\"http://localhost:4318\"", "file"),
    ] {
        let line = line(name);
        assert!(line.contains(value) && line.ends_with(source), "{line}");
    }
    // What is printed is a configuration file itself.
    std::fs::write(file, &printed).unwrap();
    let again = done(cellwright(&["serve", "--config", file, "--print-config"], ""));
    let settings = |text: &str| text.lines().map(|line| line.split("  #").next().unwrap().trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(settings(&again), settings(&printed));

    std::fs::write(file, "listne = []\n").unwrap();
    let sentence = refused(cellwright(&["serve", "--config", file, "--print-config"], ""));
    assert!(sentence.contains("line 1: unknown field `listne`"), "{sentence}");
    std::fs::write(file, "otlp_endpoint = \"https://collector\"\n").unwrap();
    let sentence = refused(cellwright(&["serve", "--config", file, "--print-config"], ""));
    assert!(sentence.contains("line 1: `https://collector` does not begin with http://"), "{sentence}");
    let open = refused(cellwright(&["serve", "--listen", "0.0.0.0:0", "--data", folder.path().to_str().unwrap()], ""));
    assert!(open.contains("create one with `cellwright keys create --admin`"), "{open}");
}

#[test]
fn the_demo_checks_itself() {
    let shown = done(cellwright(&["demo", "--once", "--json", "--seconds", "0.5"], ""));
    let summary = json(&shown);
    assert_eq!((&summary["ok"], &summary["failed"]), (&true.into(), &0.into()), "{shown}");
    assert!(summary["held"].as_u64().unwrap() > 30);
    for policy in ["cellular", "graph"] {
        let targets = summary["load"][policy]["targets"].as_array().unwrap();
        assert!(targets.len() == 3 && targets.iter().all(|target| target["ok"].as_u64().unwrap() > 0), "{summary}");
    }
}
