//! What the load generator costs: how many requests per second it sends from one thread, against a server that does nothing, and what a general
//! HTTP client does in its place. `cargo bench -p cellwright-client` prints both, with the CPU time of the sending thread for each request: on a
//! machine whose cores are shared with the server that is the figure that counts.

#![expect(clippy::print_stdout, reason = "printing figures is what a benchmark is for")]
#![expect(clippy::unwrap_used, reason = "a measurement stops at what it does not expect")]

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellwright_cell_graph::Tensor;
use cellwright_client::load::{Arrivals, Plan, Target, run};
use cellwright_client::{Address, Form, Trust};
use cellwright_protocol::InferRequest;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

const CONNECTIONS: usize = 64;
const MEASURED: Duration = Duration::from_secs(2);
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 41\r\n\r\n{\"model_name\":\"m\",\"outputs\":[          ]}";

fn main() {
    let server = serve();
    let address = Address::parse(&server.to_string()).unwrap();
    let values: Vec<f32> = (0..16_u8).map(f32::from).collect();
    let request = InferRequest { inputs: vec![Tensor::from_f32("input", &[1, 16], &values)], ..InferRequest::default() };
    let target = Target::infer(&address, None, "m", [request], Form::Binary).unwrap();
    println!("{:<36} {:>12} {:>14} {:>10}", "generator", "requests/s", "CPU us/request", "p50 us");
    let own = |name: &str, arrivals| {
        let plan = Plan {
            address: address.clone(),
            trust: Trust::System,
            targets: vec![target.clone()],
            arrivals,
            connections: CONNECTIONS,
            threads: 1,
            warm_up: Duration::ZERO,
            measured: MEASURED,
            seed: 1,
        };
        let report = run(&plan).unwrap();
        assert_eq!(report.total.ok, report.total.sent, "{report:?}");
        show(name, report.total.ok, report.client_cpu_s, report.total.latency.p50_us);
    };
    own("own connections, closed loop", Arrivals::Closed);
    own("own connections, 10,000/s at random", Arrivals::Poisson(10_000.0));
    own("own connections, 1,000/s at random", Arrivals::Poisson(1000.0));
    // Only its body is used: hyper writes a head of its own.
    let body = target.requests[0].clone();
    let (asked, cpu) = hyper_closed_loop(server, &body.slice(body.len() - 64..));
    show("hyper, closed loop", asked, cpu, f64::NAN);
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn show(name: &str, asked: u64, cpu_s: f64, p50_us: f64) {
    let asked = asked as f64;
    println!("{name:<36} {:>12.0} {:>14.2} {p50_us:>10.0}", asked / MEASURED.as_secs_f64(), cpu_s * 1e6 / asked);
}

/// A server on a thread of its own, which reads what comes and answers each request with the same bytes.
fn serve() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(answer(stream));
            }
        });
    });
    address
}

async fn answer(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 16 << 10];
    let mut end = 0;
    while let Ok(read @ 1..) = stream.read(&mut buffer[end..]).await {
        end += read;
        if whole(&buffer[..end]) {
            end = 0;
            if stream.write_all(ANSWER).await.is_err() {
                break;
            }
        }
    }
}

/// Whether a request has arrived to its end. There is never more than one: the next one waits for the answer.
fn whole(arrived: &[u8]) -> bool {
    const LENGTH: &[u8] = b"\r\ncontent-length: ";
    let find = |what: &[u8]| arrived.windows(what.len()).position(|window| window == what);
    let (Some(head), Some(length)) = (find(b"\r\n\r\n"), find(LENGTH)) else { return false };
    let digits = arrived[length + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    arrived.len() >= head + 4 + length
}

/// The same load by hyper: how many were answered, and the CPU time of the thread.
fn hyper_closed_loop(server: SocketAddr, body: &Bytes) -> (u64, f64) {
    let body = body.clone();
    let sending = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answered = Rc::new(Cell::new(0));
        LocalSet::new().block_on(&runtime, async {
            let end = Instant::now() + MEASURED;
            let all: Vec<_> =
                (0..CONNECTIONS).map(|_| tokio::task::spawn_local(keep_asking(server, body.clone(), end, Rc::clone(&answered)))).collect();
            for one in all {
                one.await.unwrap();
            }
        });
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        (answered.get(), cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9)
    });
    sending.join().unwrap()
}

async fn keep_asking(server: SocketAddr, body: Bytes, end: Instant, answered: Rc<Cell<u64>>) {
    let stream = TcpStream::connect(server).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::task::spawn_local(connection);
    while Instant::now() < end {
        let body = Full::new(body.clone()).map_err(|never: Infallible| match never {});
        let request = Request::post("/v2/models/m/infer")
            .header("host", "localhost")
            .header("content-type", "application/octet-stream")
            .header("inference-header-content-length", "150")
            .body(body)
            .unwrap();
        sender.ready().await.unwrap();
        let answer = sender.send_request(request).await.unwrap();
        answer.into_body().collect().await.unwrap();
        answered.set(answered.get() + 1);
    }
}
