//! The built program as a server on a free port, and a client that sends exactly the bytes it is told to.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::archives::Tar;
use crate::binary::Running;
use crate::bundle_folder::BundleFolder;
use crate::requests;

/// The most that an answer may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Behind a lock, because many clients share a server.
    running: Mutex<Running>,
    address: SocketAddr,
    /// What it said before it listened.
    first_said: Vec<String>,
    /// Where its data is, if that is to go with it.
    _data: Option<TempDir>,
}

impl Server {
    /// A server with a data folder of its own.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        let data = TempDir::new().expect("a temporary folder");
        let running = Running::start(&arguments(data.path(), options));
        Self::of(running, Some(data))
    }

    /// A server over a data folder that outlives it.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn over(data: &Path, options: &[&str]) -> Self {
        Self::of(Running::start(&arguments(data, options)), None)
    }

    /// A server that a shell script starts (see [`Running::start_by`]).
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start_by(script: &str, data: &Path) -> Self {
        Self::of(Running::start_by(script, &arguments(data, &[])), None)
    }

    fn of(running: Running, data: Option<TempDir>) -> Self {
        let mut first_said = Vec::new();
        let address = loop {
            let line = running.line_of_stderr();
            if let Some(rest) = line.strip_prefix("listening on http://") {
                let address = rest.split(' ').next().unwrap_or_default();
                break address.parse().unwrap_or_else(|_| panic!("no address in `{line}`"));
            }
            first_said.push(line);
        };
        let server = Self { running: Mutex::new(running), address, first_said, _data: data };
        server.until("it is ready", || server.get("/v2/health/ready").status == 200);
        server
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.running().id()
    }

    /// A connection to it.
    ///
    /// # Panics
    /// If it does not accept.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit can be set");
        stream
    }

    /// Sends bytes as they are, and reads one answer.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let answer = self.try_raw(bytes);
        answer.unwrap_or_else(|cause| panic!("no answer: {cause}")).expect("an answer before the connection closes")
    }

    /// The same of a server that may be gone.
    ///
    /// # Errors
    /// If it is, or goes while it answers.
    pub fn try_raw(&self, bytes: &[u8]) -> io::Result<Option<Answer>> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // A server that has read enough answers and closes, which may break the writing off.
        let _ = stream.write_all(bytes);
        Answer::read(&mut BufReader::new(stream))
    }

    /// One request on a connection of its own.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.raw(&request(method, path, headers, body))
    }

    /// One request without a body.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    /// An inference request in JSON.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn infer(&self, model: &str, body: &Value) -> Answer {
        self.send("POST", &format!("/v2/models/{model}/infer"), &[], body.to_string().as_bytes())
    }

    /// Uploads a bundle under that name.
    ///
    /// # Panics
    /// If it is not taken.
    pub fn push(&self, name: &str, bundle: &BundleFolder) {
        let answer = self.upload(name, &Tar::of(bundle.path()).finish());
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    }

    /// Uploads an archive under that name.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn upload(&self, name: &str, archive: &[u8]) -> Answer {
        self.send("PUT", &format!("/v1/models/{name}"), &[], archive)
    }

    /// The sum of a figure of `/metrics` over all its labels that contain `label`.
    ///
    /// # Panics
    /// If there is no such figure.
    #[must_use]
    pub fn figure(&self, name: &str, label: &str) -> f64 {
        figure(&self.get("/metrics").text(), name, label)
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// If it does not become so in time.
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "it is not so that {what}; the server said {:?}", self.running().rest_of_stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What it has said: before it listened, and since this was asked last.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        self.first_said.iter().cloned().chain(self.running().rest_of_stderr()).collect()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.running().id()).ok().and_then(Pid::from_raw).expect("a process has an id");
        kill_process(id, signal).expect("a child can be signalled");
    }

    /// Waits until it ends; gives its exit status, none if a signal ended it, and what it said.
    ///
    /// # Panics
    /// If it does not end in time.
    #[must_use]
    pub fn wait(self) -> (Option<i32>, Vec<String>) {
        let status = self.running().wait();
        (status, self.running().rest_of_stderr())
    }
}

fn arguments<'a>(data: &'a Path, options: &[&'a str]) -> Vec<&'a str> {
    let data = data.to_str().expect("temporary folders have plain names");
    [&["serve", "--listen", "127.0.0.1:0", "--data", data], options].concat()
}

/// A request after whose answer the connection closes.
#[must_use]
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    [head.as_bytes(), b"\r\n", body].concat()
}

/// A request of the summing model, as JSON.
///
/// # Panics
/// Never: the input is made of floats.
#[must_use]
pub fn sum(seed: usize, rows: usize) -> Value {
    let x = requests::sum(seed, rows).inputs[0].to_f32().expect("floats");
    json!({ "id": format!("sum-{seed}"), "inputs": [{ "name": "x", "datatype": "FP32", "shape": [rows, 4], "data": x }] })
}

/// Whether an answer is that of [`sum`].
#[must_use]
pub fn is_sum(answer: &Answer, seed: usize, rows: usize) -> bool {
    answer.status == 200 && answer.json()["outputs"][0]["data"] == json!(requests::sum_answer(seed, rows))
}

/// The answer to [`sum`] of a version of the summing model that has this bias in every column.
#[must_use]
pub fn biased(seed: usize, rows: usize, bias: f32) -> Vec<f32> {
    let own = requests::sum_answer(seed, rows).into_iter().zip(1_u8..);
    own.map(|(sum, column)| sum + rows as f32 * (bias - f32::from(column))).collect()
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Its headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads one answer; none if the connection closes before it begins.
    ///
    /// # Errors
    /// If it breaks off, or is no HTTP.
    pub fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let Some(first) = line(from)? else { return Ok(None) };
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("`{first}` is no status line")))?;
        let mut headers = Vec::new();
        loop {
            let line = line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Self { status, headers, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            while chunk(from, &mut answer.body)? {}
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().map_err(io::Error::other)?;
            answer.body.resize(length, 0);
            from.read_exact(&mut answer.body)?;
        } else if status != 204 {
            from.read_to_end(&mut answer.body)?;
        }
        Ok(Some(answer))
    }

    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks that it is a refusal of one of these statuses, whose sentence has these pieces.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn refuses(&self, what: &str, statuses: &[u16], pieces: &[&str]) {
        assert!(statuses.contains(&self.status), "{what}: {} {}", self.status, self.text());
        let sentence = self.json()["error"].as_str().unwrap_or_default().to_owned();
        for piece in pieces {
            assert!(sentence.contains(piece), "{what}: `{piece}` is not in: {sentence}");
        }
        assert!(!sentence.is_empty() && !sentence.contains('\n'), "{what}: {sentence:?}");
    }
}

/// The next line, without its end; none if there is nothing.
fn line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = from.read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

/// Reads one chunk; gives whether more may follow.
fn chunk(from: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<bool> {
    let size = line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let size = u64::from_str_radix(&size, 16).map_err(io::Error::other)?;
    let read = from.take(size).read_to_end(body)? as u64;
    if read < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line(from)?;
    Ok(size > 0)
}

/// The sum of a figure of a page of metrics over all its labels that contain `label`.
pub(crate) fn figure(page: &str, name: &str, label: &str) -> f64 {
    let samples = page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    let mut values = samples.filter(|line| line.contains(label)).map(|line| {
        let value = line.rsplit(' ').next().unwrap_or_default();
        value.parse::<f64>().unwrap_or_else(|_| panic!("no number in `{line}`"))
    });
    let first = values.next().unwrap_or_else(|| panic!("no figure `{name}` with `{label}` in:\n{page}"));
    first + values.sum::<f64>()
}
