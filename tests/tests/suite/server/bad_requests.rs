//! Requests that must be refused, with the reason.

use std::io::{BufReader, Write as _};

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::neighbours::beside_clients;
use cellwright_tests::server::{Answer, Server};

/// What is wrong with the body, the body, the status, and pieces of the sentence.
type Body = (&'static str, String, u16, &'static [&'static str]);

fn with_input(input: &str) -> String {
    format!("{{\"id\":\"bad\",\"inputs\":[{{{input}}}]}}")
}

fn behaving(behaviour: &str) -> String {
    let input = r#"{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}"#;
    format!("{{\"id\":\"bad\",\"parameters\":{{\"behave\":\"{behaviour}\"}},\"inputs\":[{input}]}}")
}

/// All that a client is told of a plugin that fails.
const FAILED: &str = "the model's plugin failed; its owner can look up why under the request's id (model `sums`, request `bad`)";

fn bodies() -> Vec<Body> {
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    vec![
        ("nothing", String::new(), 400, &["JSON"]),
        ("half of a message", r#"{"inputs":[{"name":"x""#.into(), 400, &["JSON"]),
        ("a list", "[]".into(), 400, &["JSON"]),
        ("deep nesting", nested.clone(), 400, &["JSON"]),
        ("deep nesting of data", with_input(&format!(r#""name":"x","datatype":"FP32","shape":[1,4],"data":{nested}"#)), 400, &["x"]),
        ("deep nesting of what nobody reads", format!("{{\"other\":{nested}}}"), 400, &["JSON"]),
        ("two messages", format!("{0}{0}", with_input("")), 400, &["JSON"]),
        ("no inputs", r#"{"inputs":[]}"#.into(), 400, &["no inputs"]),
        ("no such datatype", with_input(r#""name":"x","datatype":"FLOAT","shape":[1,4],"data":[1,2,3,4]"#), 400, &["FLOAT", "FP32"]),
        ("another datatype", with_input(r#""name":"x","datatype":"FP64","shape":[1,4],"data":[1,2,3,4]"#), 400, &["x", "FP64", "FP32"]),
        ("another shape", with_input(r#""name":"x","datatype":"FP32","shape":[1,5],"data":[1,2,3,4,5]"#), 400, &["x", "[1, 5]"]),
        ("too few values", with_input(r#""name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3]"#), 400, &["x", "4", "3"]),
        ("ragged values", with_input(r#""name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2],[3]]"#), 400, &["x", "ragged"]),
        ("text for numbers", with_input(r#""name":"x","datatype":"FP32","shape":[1,4],"data":["a",2,3,4]"#), 400, &["x"]),
        ("a number beyond numbers", with_input(r#""name":"x","datatype":"FP32","shape":[1,4],"data":[1e999,2,3,4]"#), 400, &[]),
        ("a negative extent", with_input(r#""name":"x","datatype":"FP32","shape":[-1,4],"data":[]"#), 400, &["x", "-1"]),
        ("an endless shape", with_input(r#""name":"x","datatype":"FP32","shape":[9223372036854775807,4],"data":[1]"#), 400, &["x"]),
        (
            "a shape of many axes",
            with_input(&format!(r#""name":"x","datatype":"FP32","shape":[{}1],"data":[1]"#, "1,".repeat(10_000))),
            400,
            &["x"],
        ),
        ("another name", with_input(r#""name":"y","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]"#), 400, &["y"]),
        (
            "shared memory",
            with_input(
                r#""name":"x","datatype":"FP32","shape":[1,4],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":16}"#,
            ),
            501,
            &["shared memory"],
        ),
        (
            "binary data that is not there",
            with_input(r#""name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}"#),
            400,
            &["binary"],
        ),
        ("a plugin that traps", behaving("trap"), 502, &[FAILED]),
        ("a plugin that panics", behaving("panic"), 502, &[FAILED]),
        ("a plugin that never ends", behaving("loop"), 502, &[FAILED]),
        ("a plugin that hoards", behaving("memory"), 502, &[FAILED]),
        ("a plugin that builds a cycle", behaving("cycle-own-step"), 502, &[FAILED]),
        ("a plugin that gives up", behaving("refuse-internal"), 502, &[FAILED]),
        ("a plugin that traps later", behaving("resume-trap"), 502, &[FAILED]),
        ("a plugin that refuses", behaving("refuse-input"), 400, &["I do not like this input"]),
        ("a plugin that cannot", behaving("refuse-unsupported"), 501, &["I cannot do this"]),
    ]
}

#[test]
fn bodies_get_a_status_and_a_sentence_and_nobody_else_notices() {
    let server = Server::start(&[]);
    server.push("sums", &BundleFolder::summing());
    beside_clients(&server, "sums", || {
        for (what, body, status, pieces) in bodies() {
            let answer = server.send("POST", "/v2/models/sums/infer", &[], body.as_bytes());
            answer.refuses(what, &[status], pieces);
            answer.refuses(what, &[status], &["model `sums`"]);
            assert!(answer.header("x-request-id").is_some(), "{what}");
        }
        let text = b"{\"id\":\"\xff\xfe\",\"inputs\":[]}";
        server.send("POST", "/v2/models/sums/infer", &[], text).refuses("no UTF-8", &[400], &["JSON"]);
        server.send("POST", "/v2/models/sums/generate", &[], b"{\"x\":\"four\"}").refuses("text to generate from", &[400], &["x"]);
        server.send("POST", "/v2/models/sums/generate_stream", &[], b"{\"y\":1}").refuses("no input", &[400], &["x"]);
    });
}

/// A message with one binary tensor: what is wrong, bytes of JSON as the header says, the tensor's size as the JSON says, bytes that follow, and
/// what the answer names.
type Sizes = (&'static str, Option<&'static str>, &'static str, usize, &'static [&'static str]);

const SIZES: [Sizes; 11] = [
    ("one byte short", None, "16", 15, &["x", "16", "15"]),
    ("one byte over", None, "16", 17, &["1 byte behind its last tensor"]),
    ("a size that is not the shape's", None, "12", 12, &["x", "16", "12"]),
    ("a size beyond all sizes", None, "18446744073709551615", 16, &[]),
    ("a negative size", None, "-1", 16, &["binary_data_size"]),
    ("a size in words", None, "\"16\"", 16, &["binary_data_size"]),
    ("more JSON than there is message", Some("100000"), "16", 16, &["100000"]),
    ("less JSON than there is", Some("10"), "16", 16, &["JSON"]),
    ("a length that is none", Some("ten"), "16", 16, &["Inference-Header-Content-Length"]),
    ("a negative length", Some("-5"), "16", 16, &["Inference-Header-Content-Length"]),
    ("a length beyond all lengths", Some("99999999999999999999999"), "16", 16, &["Inference-Header-Content-Length"]),
];

#[test]
fn sizes_that_do_not_add_up_are_named() {
    let server = Server::start(&[]);
    server.push("sums", &BundleFolder::summing());
    let send = |length: Option<&str>, size: &str, follow: usize| {
        let json = with_input(&format!(r#""name":"x","datatype":"FP32","shape":[1,4],"parameters":{{"binary_data_size":{size}}}"#));
        let length = length.map_or_else(|| json.len().to_string(), str::to_owned);
        let body = [json.as_bytes(), &vec![0; follow]].concat();
        server.send("POST", "/v2/models/sums/infer", &[("inference-header-content-length", &length)], &body)
    };
    beside_clients(&server, "sums", || {
        for (what, length, size, follow, pieces) in SIZES {
            send(length, size, follow).refuses(what, &[400], pieces);
        }
    });
    assert_eq!(send(None, "16", 16).status, 200, "an honest message is refused too");
}

#[test]
fn an_index_is_checked_where_it_is_used() {
    let server = Server::start(&[]);
    server.push("sums", &BundleFolder::summing());
    server.push("chain", &BundleFolder::recurrent());
    beside_clients(&server, "sums", || {
        for (tokens, piece) in [("[0,5,1]", "5"), ("[0,-6]", "-6"), ("[9223372036854775807]", "9223372036854775807")] {
            let shape = tokens.split(',').count();
            let body = with_input(&format!(r#""name":"tokens","datatype":"INT64","shape":[{shape}],"data":{tokens}"#));
            server.send("POST", "/v2/models/chain/infer", &[], body.as_bytes()).refuses(tokens, &[400], &[piece, "chain"]);
        }
    });
}

#[test]
fn models_and_versions_that_are_not_there_are_named() {
    let server = Server::start(&[]);
    server.push("sums", &BundleFolder::summing());
    let infer = |path: &str| server.send("POST", path, &[], cellwright_tests::server::sum(1, 1).to_string().as_bytes());
    assert_eq!(infer("/v2/models/sums/versions/1/infer").status, 200);
    beside_clients(&server, "sums", || {
        infer("/v2/models/nobody/infer").refuses("a model", &[404], &["nobody"]);
        infer("/v2/models/sums/versions/2/infer").refuses("a version", &[404], &["sums", "2"]);
        infer("/v2/models/sums/versions/0/infer").refuses("version 0", &[400, 404], &["0"]);
        infer("/v2/models/sums/versions/one/infer").refuses("a version in words", &[400, 404], &["one"]);
        infer("/v2/models/sums/versions/99999999999999999999/infer").refuses(
            "a version beyond all",
            &[400, 404],
            &["99999999999999999999"],
        );
        let long = "n".repeat(10_000);
        for name in ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "sums%00", "sums%0d%0ax", ".sums", "s%20ums", "%ff", &long] {
            infer(&format!("/v2/models/{name}/infer")).refuses(name, &[400, 404], &[]);
            server.send("PUT", &format!("/v1/models/{name}"), &[], b"").refuses(name, &[400, 404, 405], &[]);
        }
    });
}

#[test]
fn heads_that_lie_are_refused() {
    let server = Server::start(&["--body-bytes-max", "1000000"]);
    server.push("sums", &BundleFolder::summing());
    let post = "POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\n";
    beside_clients(&server, "sums", || {
        let announced = server.raw(format!("{post}content-length: 99999999999\r\n\r\n").as_bytes());
        announced.refuses("more than is taken", &[413], &["1000000"]);
        let twice = server.raw(format!("{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}").as_bytes());
        assert_eq!(twice.status, 400);
        let both = server.raw(format!("{post}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{{}}").as_bytes());
        assert_eq!(both.status, 400);
        assert_eq!(server.raw(b"\x16\x03\x01 what is this\r\n\r\n").status, 400);
        let body = vec![b' '; 1_000_001];
        server.send("POST", "/v2/models/sums/infer", &[], &body).refuses("a body over the limit", &[413], &["1000000"]);
        chunks_without_end(&server, post);
    });
}

/// The server has enough of them at some time, and says so.
fn chunks_without_end(server: &Server, post: &str) {
    let mut stream = server.connect();
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let answer = std::thread::spawn(move || Answer::read(&mut reader));
    stream.write_all(format!("{post}transfer-encoding: chunked\r\n\r\n").as_bytes()).expect("the head is taken");
    let chunk = [&b"10000\r\n"[..], &[b' '; 0x10000], b"\r\n"].concat();
    let sent = (0..10_000).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    // What may still be read after the limit is bounded too.
    assert!(sent < 5000, "{sent} chunks were taken");
    let answer = answer.join().expect("it reads").expect("an answer, and then the end").expect("an answer before the end");
    answer.refuses("chunks without end", &[413], &["1000000"]);
}
