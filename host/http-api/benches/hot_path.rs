//! What the HTTP layer costs: a closed loop of binary requests over kept connections, answered by another thread that does nothing.
//!
//! `cargo bench -p cellwright-http-api`. Client and server share the process, so the processor time that is printed is of both; it says more
//! than the rate does where other programs run beside.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark reports on the terminal, and stops where it cannot go on")]

#[path = "../tests/http/fake.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod fake;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_http_api::{Server, ServerOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(3);

fn request(binary: bool) -> Vec<u8> {
    let elements = 16;
    let (json, tail) = if binary {
        let parameters = format!("\"parameters\":{{\"binary_data_size\":{}}}", elements * 4);
        let json = format!(
            "{{\"inputs\":[{{\"name\":\"x\",\"shape\":[{elements}],\"datatype\":\"FP32\",{parameters}}}],\"parameters\":{{\"binary_data_output\":true}}}}"
        );
        (json, vec![0; elements * 4])
    } else {
        let data = vec!["0.125"; elements].join(",");
        (format!("{{\"inputs\":[{{\"name\":\"x\",\"shape\":[{elements}],\"datatype\":\"FP32\",\"data\":[{data}]}}]}}"), Vec::new())
    };
    let length = if binary { format!("inference-header-content-length: {}\r\n", json.len()) } else { String::new() };
    let head =
        format!("POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\n{length}content-length: {}\r\n\r\n", json.len() + tail.len());
    [head.as_bytes(), json.as_bytes(), &tail].concat()
}

/// Sends one request after the other and gives the latencies, in microseconds.
async fn client(address: SocketAddr, request: Arc<Vec<u8>>, until: Instant) -> Vec<u32> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut latencies = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    let mut length = None;
    while Instant::now() < until {
        let started = Instant::now();
        stream.write_all(&request).await.unwrap();
        let mut filled = 0;
        loop {
            filled += stream.read(&mut buffer[filled..]).await.unwrap();
            // All answers are as long as the first.
            let whole = *length.get_or_insert_with(|| answer_length(&buffer[..filled]));
            assert!(filled <= whole, "{}", String::from_utf8_lossy(&buffer[..filled]));
            if filled == whole {
                break;
            }
        }
        latencies.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    latencies
}

fn answer_length(bytes: &[u8]) -> usize {
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(bytes));
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    end + 4 + length
}

/// Processor time of this process, of a clock that ticks a hundred times a second.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks: u64 = [11, 12].iter().filter_map(|field| fields.get(*field)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let host = Arc::new(fake::Fake::new(folder.path()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let options = ServerOptions { addresses: vec!["127.0.0.1:0".parse().unwrap()], ..ServerOptions::default() };
    let server = runtime.block_on(Server::bind(options, host)).unwrap();
    let address = server.addresses()[0];
    runtime.spawn(server.serve(std::future::pending()));
    for binary in [true, false] {
        let request = Arc::new(request(binary));
        let clients = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let run = |time: Duration| {
            clients.block_on(async {
                let until = Instant::now() + time;
                let running: Vec<_> = (0..CONNECTIONS).map(|_| tokio::spawn(client(address, request.clone(), until))).collect();
                let mut latencies = Vec::new();
                for client in running {
                    latencies.extend(client.await.unwrap());
                }
                latencies
            })
        };
        run(WARM_UP);
        let (started, processor) = (Instant::now(), processor_time());
        let mut latencies = run(MEASURED);
        let (took, processor) = (started.elapsed(), processor_time() - processor);
        latencies.sort_unstable();
        let count = latencies.len();
        println!(
            "{}: {:.0} requests/s, p50 {} us, p99 {} us, {:.1} us of processor time each (client and server)",
            if binary { "binary" } else { "JSON" },
            count as f64 / took.as_secs_f64(),
            latencies[count / 2],
            latencies[count * 99 / 100],
            processor.as_secs_f64() * 1e6 / count as f64
        );
    }
}
