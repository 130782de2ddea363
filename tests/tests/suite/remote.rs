//! The verbs that serve and that speak to a server, as a person would use them one after the other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cellwright_tests::binary::{Ran, Running, cellwright, cellwright_in, done, program, refused, root};
use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server;
use serde_json::{Value, json};
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

    fn ask_in(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
        cellwright_in(environment, &[arguments, &["--server", &self.url]].concat(), "")
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn a_model_is_pushed_asked_switched_and_deleted() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    assert_eq!(done(server.ask(&["models"])), "there are no models; upload one with `cellwright push FOLDER`\n");
    let pushed = json(&done(server.ask(&["push", "examples/digits", "--json"])));
    assert_eq!((&pushed["version"], &pushed["activated"], &pushed["existed"]), (&1.into(), &true.into(), &false.into()));
    assert!(done(server.ask(&["push", "examples/digits"])).starts_with("digits version 1 was stored before; it serves now\n"));

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
    assert!(refused(wrong).contains("error: 2 of 2 requests failed;"));
    let wrong = server.ask_with(&["infer", "digits", "--input", "-"], "\n{\n");
    assert!(wrong.stdout.starts_with("{\"id\":null,\"error\":\"line 2: "), "{}", wrong.stdout);
    assert!(wrong.stdout.contains("; each line of the input is one request\"}"), "{}", wrong.stdout);
    assert_eq!(server.ask_with(&["infer", "digits", "--input", "-"], "\n").stderr, "the input holds no requests\n");

    // Whoever asks for one thing after the other has each answer before the input ends.
    let samples = std::fs::read_to_string(root().join("examples/digits/samples.jsonl")).unwrap();
    let mut asking = Running::start(&["infer", "digits", "--input", "-", "--server", &server.url]);
    for sample in samples.lines().take(3) {
        asking.say(&format!("{sample}\n"));
        assert_eq!(json(&asking.line())["id"], json(sample)["id"]);
    }
    drop(asking);

    let shown = done(server.ask(&["models", "show", "digits"]));
    for piece in ["active", "input ", "output ", "logits", "FP32"] {
        assert!(shown.contains(piece), "`{piece}` is not in: {shown}");
    }
    assert_eq!(json(&done(server.ask(&["models", "show", "digits", "--json"])))["outputs"][0]["datatype"], "FP32");
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
    let pushed = done(server.ask(&["push", "examples/dates", "--name", "iso"]));
    assert!(pushed.ends_with("16 samples passed; 16 compared with expected answers, 0 only run\n"), "{pushed}");
    let parts = done(server.ask_with(&["infer", "iso", "--input", "-", "--stream"], "{\"text\":\"28 agosto 1908\"}\n"));
    let texts = parts.lines().map(|line| json(line)["text"].clone()).map(|text| match text {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect::<String>(),
        text => text.as_str().unwrap_or_default().to_owned(),
    });
    assert_eq!(texts.collect::<String>(), "1908-08-28");
    assert!(parts.lines().count() > 1, "{parts}");

    // So is a request of the protocol, whose id stands in every part.
    let of_protocol = json!({ "id": "p", "inputs": [{ "name": "text", "datatype": "BYTES", "shape": [1], "data": ["28 agosto 1908"] }] });
    let streamed = done(server.ask_with(&["infer", "iso", "--input", "-", "--stream"], &of_protocol.to_string()));
    assert_eq!(streamed.replace("\"id\":\"p\",", ""), parts);
    let mut asking = of_protocol;
    asking["outputs"] = json!([{ "name": "text" }]);
    let told = json(&server.ask_with(&["infer", "iso", "--input", "-", "--stream"], &asking.to_string()).stdout);
    assert!(told["id"] == "p" && told["error"].as_str().unwrap().starts_with("an answer of `generate` has all outputs"), "{told}");

    let lines = "{\"text\":\n{\"id\":\"b\",\"text\":7}\n{\"text\":\"28 agosto 1908\"}\n";
    let ran = server.ask_with(&["infer", "iso", "--input", "-", "--stream"], lines);
    let told: Vec<Value> = ran.stdout.lines().map(json).collect();
    assert!(
        told[0]["id"].is_null() && told[0]["error"].as_str().unwrap().starts_with("line 1 of the input is not a JSON object"),
        "{told:?}"
    );
    assert!(told[1]["id"] == "b" && told[1]["error"].is_string(), "{told:?}");
    assert_eq!(told[2..].len(), parts.lines().count(), "the others are answered");
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
    assert!(in_use.contains("if its server is running, use `--server URL`"), "{in_use}");
    done(server.ask(&["keys", "revoke", key["key"]["id"].as_str().unwrap(), "--key", &secret]));
    assert!(refused(server.ask(&["models", "--key", infer_only])).contains("(status 401)"));
}

/// A key that lands on a server that only the environment names closes it to everybody who could use it, and the folder that was meant has none.
#[test]
fn a_data_folder_that_is_typed_goes_before_a_server_of_the_environment() {
    let (data, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = Server::start(data.path(), &[]);
    let environment = [("CELLWRIGHT_SERVER", server.url.as_str())];
    let folder = other.path().to_str().unwrap();
    let made = done(cellwright_in(&environment, &["keys", "create", "--admin", "--data", folder], ""));
    assert!(made.contains(&format!("It is valid on the server with the data folder {folder}.")), "{made}");
    done(cellwright_in(&environment, &["tenants", "create", "acme", "--data", folder], ""));
    done(server.ask(&["models"]));
    assert!(!done(cellwright_in(&environment, &["tenants", "list"], "")).contains("acme"));
    let both = refused(server.ask(&["keys", "list", "--data", folder]));
    assert!(both.contains("not both"), "{both}");
}

#[test]
fn nobody_makes_a_data_folder_by_looking_into_it() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("elsewhere");
    for verb in [&["keys", "list"][..], &["keys", "revoke", "k"], &["tenants", "list"], &["tenants", "delete", "acme"]] {
        let error = refused(cellwright(&[verb, &["--data", missing.to_str().unwrap()]].concat(), ""));
        assert!(error.contains("there is no server's data folder at"), "{error}");
    }
    assert!(!missing.exists());
}

/// A client hears that the plugin failed, and the owner of the model why.
#[test]
fn a_plugin_that_fails_is_explained_to_its_owner_alone() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    let bundle = BundleFolder::summing();
    let path = bundle.path().to_str().unwrap();
    done(server.ask(&["push", path]));
    assert_eq!(done(server.ask(&["logs", "sums"])), "no call of sums has failed because of its plugin since the server started\n");
    assert_eq!(done(server.ask(&["logs", "sums", "--json"])), "");
    let fail = |id: &str| {
        let input = json!([{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4] }]);
        let request = json!({ "id": id, "parameters": { "behave": "panic" }, "inputs": input });
        let ran = server.ask_with(&["infer", "sums", "--input", "-"], &request.to_string());
        let all = ran.stdout.clone() + &refused(ran);
        assert!(all.contains(&format!(
            "the model's plugin failed; its owner can look up why under the request's id (model `sums`, request `{id}`)"
        )));
        assert!(!all.contains("panicked"), "{all}");
    };
    fail("first");
    let log = done(server.ask(&["logs", "sums"]));
    let words = "version 1, request `first`: plugin `plugin.wasm` failed in unfold: wasm `unreachable` instruction executed (it noted: hostile: panicked on \
                 purpose, at step 7)";
    assert!(log.lines().count() == 1 && log.trim_end().ends_with(words) && log.starts_with("20"), "{log}");
    let follower = Running::start(&["logs", "sums", "--follow", "--json", "--server", &server.url]);
    assert_eq!(json(&follower.line())["request"], "first");
    fail("second");
    assert_eq!(json(&follower.line())["request"], "second");
    assert!(refused(server.ask(&["logs", "none"])).contains("there is no model `none`"));
    // Whoever uploads a plugin is told at once.
    bundle.parameter("describe", "\"panic\"");
    for told in [refused(server.ask(&["push", path])), refused(cellwright(&["check", path], ""))] {
        assert!(told.contains("failed in describe: wasm `unreachable`") && told.contains("panicked on purpose, at step 7"), "{told}");
    }
}

/// Proxies and clients try a 502 again.
#[test]
fn mistakes_in_a_models_parameters_are_its_senders() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    let folder = TempDir::new().unwrap();
    let bundle = folder.path().join("digits");
    std::fs::create_dir(&bundle).unwrap();
    for file in std::fs::read_dir(root().join("examples/digits")).unwrap().map(|file| file.unwrap().path()).filter(|file| file.is_file()) {
        std::fs::copy(&file, bundle.join(file.file_name().unwrap())).unwrap();
    }
    let manifest = std::fs::read_to_string(bundle.join("model.toml")).unwrap();
    for (right, wrong, said) in [
        ("\nhidden = ", "\nhiden = ", "parameter `hidden` is missing"),
        ("cell = \"lstm\"", "cell = \"LSTM\"", "parameter `cell` must be"),
        ("\nhidden = ", "\nfoo = 1\nhidden = ", "parameter `foo` is unknown or unused here"),
    ] {
        assert!(manifest.contains(right), "{manifest}");
        std::fs::write(bundle.join("model.toml"), manifest.replacen(right, wrong, 1)).unwrap();
        let refused = refused(server.ask(&["push", bundle.to_str().unwrap()]));
        assert!(refused.contains(said) && refused.contains("(status 400)"), "{refused}");
    }
}

#[test]
fn nobody_closes_a_server_without_a_key_that_opens_all_of_it() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    let early = refused(server.ask(&["keys", "create", "--tenant", "default", "--scope", "admin"]));
    assert!(early.contains("the first key must be an operator's key with the scope `admin`"), "{early}");
    done(server.ask(&["models"]));
    let made = done(server.ask(&["keys", "create", "--admin"]));
    assert!(made.contains("this server requires a key: pass this one with `--key`"), "{made}");
    let secret = made.lines().next().unwrap();
    let keyless = refused(server.ask(&["models"]));
    assert!(keyless.ends_with("(status 401); pass one with `--key` or CELLWRIGHT_KEY\n"), "{keyless}");
    assert!(!done(server.ask(&["keys", "create", "--tenant", "default", "--key", secret])).contains("From now on"));
    drop(server);
    let (folder, new) = (data.path().to_str().unwrap(), TempDir::new().unwrap());
    let early = refused(cellwright(&["keys", "create", "--tenant", "default", "--data", new.path().to_str().unwrap()], ""));
    assert!(early.contains("the first key must be an operator's key with the scope `admin`"), "{early}");
    let made = done(cellwright(&["keys", "create", "--admin", "--data", folder], ""));
    assert!(made.contains(&format!("on the server with the data folder {folder}")), "{made}");
}

#[test]
fn a_model_that_does_not_serve_is_listed_with_the_reason() {
    let data = TempDir::new().unwrap();
    let server = Server::start(data.path(), &[]);
    done(server.ask(&["push", "examples/digits"]));
    assert!(json(&done(server.ask(&["models", "show", "digits", "--json"])))["unavailable"].is_null());
    drop(server);
    for folder in std::fs::read_dir(data.path().join("blobs")).unwrap() {
        for file in std::fs::read_dir(folder.unwrap().path()).unwrap() {
            std::fs::write(file.unwrap().path(), b"damaged").unwrap();
        }
    }
    let server = Server::start(data.path(), &[]);
    let listed = done(server.ask(&["models"]));
    assert!(listed.contains("does not serve: ") && listed.contains("is damaged where it is stored"), "{listed}");
    assert!(json(&done(server.ask(&["models", "show", "digits", "--json"])))["unavailable"].as_str().unwrap().contains("is damaged"));
    done(server.ask(&["push", "examples/digits"]));
    assert!(done(server.ask(&["models"])).contains("serves"));
}

/// A start that is refused leaves nothing in the way of the next one.
#[test]
fn what_never_listened_recorded_nothing() {
    let folder = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, recording) = (taken.local_addr().unwrap().to_string(), folder.path().join("recording"));
    let data = folder.path().join("data");
    let start = ["serve", "--listen", &address, "--data", data.to_str().unwrap(), "--record", recording.to_str().unwrap()];
    assert!(refused(cellwright(&start, "")).contains("cannot listen on"));
    assert!(!recording.exists());
}

/// Whoever ends the program, and however, ends the servers it started for itself, whose data it cannot remove any more.
#[test]
fn servers_of_a_benchmark_go_with_it() {
    let temporary = TempDir::new().unwrap();
    let is_empty = || std::fs::read_dir(temporary.path()).unwrap().next().is_none();
    let mut bench = Command::new(program())
        .args(["bench", "serve", "examples/digits", "--rate", "20", "--seconds", "60"])
        .current_dir(root())
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(bench.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.into_iter().any(|line| line.contains("a server on this machine")));
    assert!(!is_empty());
    bench.kill().unwrap();
    bench.wait().unwrap();
    let killed = Instant::now();
    while !is_empty() {
        assert!(killed.elapsed() < Duration::from_secs(60), "the server is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_operator_says_whose_models_are_meant() {
    let data = TempDir::new().unwrap();
    let secret = done(cellwright(&["keys", "create", "--admin", "--data", data.path().to_str().unwrap()], ""));
    let secret = secret.lines().next().unwrap();
    let server = Server::start(data.path(), &[]);
    let ask = |arguments: &[&str]| server.ask(&[arguments, &["--key", secret]].concat());
    done(ask(&["tenants", "create", "acme", "--weight", "3", "--models-max", "2"]));
    done(ask(&["push", "examples/digits", "--tenant", "acme"]));

    let of_acme = json(&done(ask(&["models", "--json", "--tenant", "acme"])));
    assert_eq!((&of_acme[0]["tenant"], &of_acme[0]["name"], of_acme.as_array().unwrap().len()), (&"acme".into(), &"digits".into(), 1));
    assert_eq!(json(&done(ask(&["models", "list", "--json", "--tenant", "default"]))), json!([]));
    let infer = ["infer", "digits", "--input", "examples/digits/samples.jsonl"];
    done(ask(&[&infer[..], &["--tenant", "acme"]].concat()));
    // Without a name the models are the default tenant's, which has none.
    assert!(json(&ask(&infer).stdout)["error"].as_str().unwrap().contains("there is no model `digits`"));

    let key = json(&done(ask(&["keys", "create", "--tenant", "acme", "--json"])));
    let acme = key["secret"].as_str().unwrap();
    done(server.ask(&["models", "show", "digits", "--key", acme, "--tenant", "acme"]));
    let sentence = refused(server.ask(&["models", "--key", acme, "--tenant", "default"]));
    assert!(sentence.contains("this key does not belong to tenant `default`"), "{sentence}");
}

#[test]
fn what_a_tenant_may_use_is_changed_and_a_tenant_without_models_is_deleted() {
    let data = TempDir::new().unwrap();
    let folder = data.path().to_str().unwrap();
    let check = |ask: &dyn Fn(&[&str]) -> Ran| {
        done(ask(&["tenants", "create", "acme", "--weight", "3", "--models-max", "2", "--versions-max", "3", "--bytes-max", "1000000"]));
        let table = done(ask(&["tenants", "list"]));
        assert!(table.lines().next().unwrap().ends_with("models  versions         bytes"), "{table}");
        assert!(
            table.lines().any(|line| line.starts_with("acme") && line.split_whitespace().rev().take(3).eq(["1000000", "3", "2"])),
            "{table}"
        );
        let changed = json(&done(ask(&["tenants", "set", "acme", "--weight", "5", "--device-share", "0.5", "--json"])));
        let settings = &changed["settings"];
        // What is not given stays.
        assert_eq!((&settings["weight"], &settings["device_share"], &settings["models_max"]), (&5.into(), &0.5.into(), &2.into()));
        let listed = json(&done(ask(&["tenants", "list", "--json"])));
        assert!(listed.as_array().unwrap().contains(&changed), "{listed}");
        assert_eq!(done(ask(&["tenants", "delete", "acme"])), "tenant acme is deleted\n");
        for gone in [&["tenants", "set", "acme", "--weight", "1"][..], &["tenants", "delete", "acme"]] {
            let sentence = refused(ask(gone));
            assert!(sentence.contains("there is no tenant `acme`"), "{sentence}");
        }
    };
    check(&|arguments| cellwright(&[arguments, &["--data", folder]].concat(), ""));
    let server = Server::start(data.path(), &[]);
    check(&|arguments| server.ask(arguments));
    done(server.ask(&["tenants", "create", "busy"]));
    done(server.ask(&["push", "examples/digits", "--tenant", "busy"]));
    let sentence = refused(server.ask(&["tenants", "delete", "busy"]));
    assert!(sentence.contains("(status 409)"), "{sentence}");
}

#[test]
fn a_server_that_speaks_tls_is_administered_and_asked() {
    let data = TempDir::new().unwrap();
    let secret = done(cellwright(&["keys", "create", "--admin", "--data", data.path().to_str().unwrap()], ""));
    let secret = secret.lines().next().unwrap();
    let (certificate, key) = ("tests/tests/suite/http/tls/certificate.pem", "tests/tests/suite/http/tls/key.pem");
    let server = Server::start(data.path(), &["--tls-certificate", certificate, "--tls-key", key]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let ask = |arguments: &[&str]| server.ask(&[arguments, &["--ca", certificate, "--key", secret]].concat());
    done(ask(&["push", "examples/digits"]));
    done(ask(&["tenants", "list"]));
    let samples = std::fs::read_to_string(root().join("examples/digits/samples.jsonl")).unwrap();
    let answers = done(ask(&["infer", "digits", "--input", "examples/digits/samples.jsonl", "--binary"]));
    assert_eq!(answers.lines().count(), samples.lines().count());
    done(ask(&["bench", "serve", "examples/digits", "--seconds", "0.5"]));

    let models = ["models", "--key", secret];
    done(server.ask_in(&[("CELLWRIGHT_CA", certificate)], &models));
    // What the system trusts is what counts where no file is named.
    done(server.ask_in(&[("SSL_CERT_FILE", certificate)], &models));
    let sentence = refused(server.ask_in(&[("SSL_CERT_FILE", "host/client/tests/tls/expired.pem")], &models));
    assert_eq!(sentence, format!("error: {}: its certificate was not issued by a trusted authority\n", server.url));
    let missing = refused(server.ask(&["models", "--ca", "missing.pem"]));
    assert!(missing.contains("from missing.pem") && missing.lines().count() == 1, "{missing}");
}

#[test]
fn a_port_for_tls_says_nothing_in_clear_and_goes_on() {
    let data = TempDir::new().unwrap();
    let (certificate, key) = ("tests/tests/suite/http/tls/certificate.pem", "tests/tests/suite/http/tls/key.pem");
    let server = Server::start(data.path(), &["--tls-certificate", certificate, "--tls-key", key]);
    let address = server.url.strip_prefix("https://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&server::request("GET", "/v1/models", &[], b"")).unwrap();
    let mut heard = Vec::new();
    // It closes, if need be while there is something that it has not read.
    let end = stream.read_to_end(&mut heard);
    assert!(end.is_ok() || end.is_err_and(|cause| cause.kind() == std::io::ErrorKind::ConnectionReset), "it is left open");
    assert!(!String::from_utf8_lossy(&heard).contains("HTTP/"), "{heard:?}");
    let sentence = refused(cellwright(&["models", "--server", &format!("http://{address}")], ""));
    assert_eq!(sentence, format!("error: http://{address}: it does not answer in HTTP; perhaps its address begins with https://\n"));
    done(server.ask(&["models", "--ca", certificate]));
}

#[test]
fn a_server_goes_on_where_nobody_can_read_what_it_says() {
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for errors in [full(), Stdio::piped()] {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let data = TempDir::new().unwrap();
        let mut server = Command::new(program());
        server.args(["serve", "--listen", &free, "--data"]).arg(data.path()).stderr(errors);
        let mut server = server.spawn().unwrap();
        drop(server.stderr.take());
        let listed = cellwright(&["models", "--server", &format!("http://{free}")], "");
        let _ = server.kill();
        let ended = server.wait().unwrap();
        assert!(done(listed).starts_with("there are no models"), "{ended:?}");
    }
}

#[test]
fn a_server_that_is_only_starting_is_waited_for() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let url = format!("http://{free}");
    let mut early = Running::start(&["models", "--server", &url]);
    assert_eq!(early.line_of_stderr(), format!("no server listens at {url} yet; waiting up to 5 s"));
    let data = TempDir::new().unwrap();
    let server = Running::start(&["serve", "--listen", &free, "--data", data.path().to_str().unwrap()]);
    assert_eq!(early.wait(), Some(0), "{:?}", early.rest_of_stderr());
    assert!(early.line().starts_with("there are no models"));
    drop(server);
    let sentence = refused(cellwright(&["models", "--server", &url], ""));
    assert!(sentence.contains(&format!("no server listens at {url}: start one with `cellwright serve`")), "{sentence}");
    let lines = "{\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[1],\"data\":[1]}]}\n".repeat(100);
    for stream in [&[][..], &["--stream"]] {
        let ran = cellwright(&[&["infer", "m", "--input", "-", "--server", &url], stream].concat(), &lines);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("error: stopped ") && ran.stderr.matches("no server listens at").count() == 2, "{}", ran.stderr);
    }
}

#[test]
fn latency_against_throughput_is_drawn() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("plot.svg");
    let options = ["--rate", "40,80", "--seconds", "0.5", "--json", "--plot", file.to_str().unwrap()];
    let printed = done(cellwright(&[&["bench", "serve", "examples/digits"], &options[..]].concat(), ""));
    let rates: Vec<Value> = printed.lines().map(|line| json(line)["rate"].clone()).collect();
    assert_eq!(rates, [json!(40.0), json!(80.0)]);
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{picture}");
    for label in ["answers per second", "p50", "p90", "p99"] {
        assert!(picture.contains(label), "`{label}` is not in the picture");
    }
    // A point of each of the three lines for each rate.
    assert!(picture.matches("<circle").count() >= 6, "{picture}");
}

#[test]
fn policies_are_compared_in_turns() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("plot.svg");
    let options = ["--policy", "cellular,graph:4", "--rate", "40,80", "--seconds", "0.5", "--plot", file.to_str().unwrap()];
    let bench = |more: &[&str]| done(cellwright(&[&["bench", "serve", "examples/digits"], &options[..], more].concat(), ""));
    let lines: Vec<Value> = bench(&["--json"]).lines().map(json).collect();
    let turns: Vec<_> = lines.iter().map(|line| (line["policy"].as_str().unwrap(), line["rate"].as_f64().unwrap())).collect();
    assert_eq!(turns, [("cellular", 40.0), ("graph:4", 40.0), ("cellular", 80.0), ("graph:4", 80.0)]);
    assert!(lines.iter().all(|line| line["report"]["total"]["ok"].as_u64().is_some_and(|ok| ok > 5)), "{lines:?}");
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.contains("cellular") && picture.contains("graph:4"), "{picture}");
    let people = bench(&[]);
    assert!(people.lines().next().is_some_and(|head| head.starts_with("policy ")) && people.lines().count() == 5, "{people}");
}

#[test]
fn a_rate_that_is_not_kept_up_with_is_told_once() {
    let bench = ["bench", "serve", "examples/digits", "examples/dates", "--rate", "50000", "--connections", "2", "--seconds", "0.5"];
    let said = done(cellwright(&bench, ""));
    let told: Vec<_> = said.lines().map(|line| line.ends_with("did not keep up")).collect();
    assert_eq!(told, [false, false, false, true], "{said}");
}

#[test]
fn a_rate_that_is_offered_twice_comes_in_other_bursts() {
    let bench = ["bench", "serve", "examples/digits", "--rate", "300,300", "--seed", "2", "--seconds", "1", "--json"];
    let sent: Vec<u64> = done(cellwright(&bench, "")).lines().map(|line| json(line)["report"]["total"]["sent"].as_u64().unwrap()).collect();
    // Poisson arrivals: 300 give or take 17, and as many again only by chance.
    assert!(sent.len() == 2 && sent[0] != sent[1], "{sent:?}");
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
