//! Keys that are made and ended all the time.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;

use cellwright_tests::server::Answer;
use cellwright_tests::town::{Town, connect_from, until};

use super::attacks;

type Form = (usize, f64);

attacks! {
    changes_of_keys_hold_up_nobody = keys;
}

const CONNECTIONS: usize = 200;
/// As many as a tenant may have, with the one that it has.
const KEYS: usize = 999;

/// An attacker's connections, and the keys that it has made.
struct Keys<'a> {
    town: &'a Town,
    connections: Vec<BufReader<TcpStream>>,
    made: Vec<String>,
}

impl Keys<'_> {
    /// Sends these requests side by side, and gives the answers.
    fn send(&mut self, requests: &[(String, &str)]) -> Vec<Answer> {
        for (connection, (line, body)) in self.connections.iter_mut().zip(requests) {
            let (key, length) = (&self.town.attacker, body.len());
            let request = format!("{line} HTTP/1.1\r\nhost: a\r\nauthorization: {key}\r\ncontent-length: {length}\r\n\r\n{body}");
            connection.get_mut().write_all(request.as_bytes()).expect("the server reads");
        }
        let sent = self.connections.iter_mut().zip(requests);
        sent.map(|(connection, _)| Answer::read(connection).expect("the server answers").expect("an answer")).collect()
    }

    /// Makes so many, as far as it may.
    fn make(&mut self, count: usize) {
        let new = ("POST /v1/keys".to_owned(), r#"{"scopes":["infer"],"label":""}"#);
        for answer in self.send(&vec![new; count]) {
            assert!(matches!(answer.status, 201 | 409 | 429), "{}", answer.text());
            self.made.extend(answer.json()["key"]["id"].as_str().map(str::to_owned));
        }
    }

    /// Ends so many.
    fn end(&mut self, count: usize) {
        let ended = self.made.split_off(self.made.len().saturating_sub(count));
        let requests: Vec<_> = ended.iter().map(|id| (format!("DELETE /v1/keys/{id}"), "")).collect();
        for (answer, id) in self.send(&requests).iter().zip(ended) {
            assert!(matches!(answer.status, 204 | 429), "{}", answer.text());
            self.made.extend((answer.status == 429).then_some(id));
        }
    }
}

fn keys((requests, fraction): Form) {
    let town = Town::start(&[]);
    let connections = connect_from(&town.server, [127, 0, 0, 2], CONNECTIONS).into_iter().map(|connection| {
        connection.set_nonblocking(false).expect("a socket");
        BufReader::new(connection)
    });
    let connections = connections.collect();
    let mut keys = Keys { town: &town, connections, made: Vec::new() };
    while keys.made.len() < KEYS {
        keys.make((KEYS - keys.made.len()).min(60));
    }
    let keys = Mutex::new(keys);
    town.endures(requests, fraction, |over| {
        let mut keys = keys.lock().expect("one attack at a time");
        until(over, || {
            keys.make(CONNECTIONS);
            keys.end(CONNECTIONS);
        });
    });
}
