//! A server behind a balancer that opens no more connections once the server says that it is not ready: none is refused, reset or
//! left without an answer.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cellwright_tests::bundle_folder::BundleFolder;
use cellwright_tests::server::{Answer, Server, is_sum, sum};
use rustix::process::Signal;

const CLIENTS: usize = 32;
/// Connections to one server before it is told to stop. Each server has a port of its own, so that ports do not run out.
const CONNECTIONS: usize = 4_000;

#[test]
fn a_stop_behind_a_balancer_resets_no_connection() {
    stop_under_load();
}

#[test]
#[ignore = "100,000 connections take a minute; tests/run soak has them"]
fn stops_behind_a_balancer_reset_none_of_many_connections() {
    (0..100_000 / CONNECTIONS).for_each(|_| stop_under_load());
}

fn stop_under_load() {
    let server = Server::start(&["--drain-delay", "3"]);
    server.push("sums", &BundleFolder::summing());
    let (address, opened, is_ready) = (server.address(), AtomicUsize::new(0), AtomicBool::new(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while server.get("/v2/health/ready").status == 200 {
                std::thread::sleep(Duration::from_millis(20));
            }
            is_ready.store(false, Ordering::Release);
        });
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while is_ready.load(Ordering::Acquire) {
                    let number = opened.fetch_add(1, Ordering::AcqRel);
                    connection(address, number).unwrap_or_else(|cause| panic!("connection {number}: {cause}"));
                }
            });
        }
        server.until("there was load", || opened.load(Ordering::Acquire) >= CONNECTIONS);
        server.signal(Signal::TERM);
    });
    let (status, said) = server.wait();
    assert_eq!(status, Some(0), "{said:?}");
}

/// Up to three requests on one connection, some of them after a pause; fewer if an answer says that it is the last.
fn connection(address: SocketAddr, number: usize) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    for turn in 0..=number % 3 {
        if (number + turn).is_multiple_of(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let body = sum(number, 3).to_string();
        let head = format!("POST /v2/models/sums/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let answer = Answer::read(&mut reader)?.ok_or_else(|| io::Error::other("closed without an answer"))?;
        assert!(is_sum(&answer, number, 3), "{}", answer.text());
        if answer.header("connection") == Some("close") {
            break;
        }
    }
    Ok(())
}
