//! Connections, and uploads that take their time.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;

use cellwright_tests::server::{Answer, request};
use cellwright_tests::town::{Town, connect_from, hold};

use super::attacks;

type Form = (usize, f64);

attacks! {
    an_address_has_a_part_of_the_connections = silent_connections_of_one;
    connections_without_a_request_go_first = silent_connections_of_many;
    uploads_of_others_wait_for_nobody = trickled_uploads;
}

fn silent_connections_of_one((requests, fraction): Form) {
    let town = Town::start(&["--connections-max", "64"]);
    town.endures(requests, fraction, |over| hold(over, connect_from(&town.server, [127, 0, 0, 2], 200)));
}

fn silent_connections_of_many((requests, fraction): Form) {
    let town = Town::start(&["--connections-max", "64", "--health", "127.0.0.1:0"]);
    town.endures(requests, fraction, |over| {
        let connections: Vec<_> = (2..8).map(|last| connect_from(&town.server, [127, 0, 0, last], 32)).collect();
        hold(over, connections);
    });
    let _connections: Vec<_> = (2..8).map(|last| connect_from(&town.server, [127, 0, 0, last], 32)).collect();
    assert_eq!(town.server.get("/v2/health/ready").status, 200);
    let said = town.server.said();
    let health = said.iter().find_map(|line| line.strip_prefix("listening for health probes on http://")).expect("an address");
    let ask = |path: &str| {
        let mut probe = TcpStream::connect(health).expect("it accepts");
        probe.write_all(&request("GET", path, &[], b"")).expect("the server reads");
        let answer = Answer::read(&mut BufReader::new(&mut probe)).expect("an answer");
        answer.expect("an answer before the connection closes").status
    };
    assert_eq!([ask("/v2/health/live"), ask("/v2/health/ready"), ask("/v2/models/sums")], [200, 200, 404]);
}

fn trickled_uploads((requests, fraction): Form) {
    let town = Town::start(&[]);
    let begun = format!("PUT /v1/models/slow HTTP/1.1\r\nhost: a\r\nauthorization: {}\r\ncontent-length: 1000000\r\n\r\n", town.attacker);
    town.endures(requests, fraction, |over| {
        let mut connections = connect_from(&town.server, [127, 0, 0, 2], 16);
        connections.iter_mut().for_each(|connection| connection.write_all(begun.as_bytes()).expect("the server reads"));
        hold(over, connections);
    });
}
