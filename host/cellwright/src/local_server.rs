//! A server of this program in a process of its own, on this machine, for as long as it is needed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cellwright_client::Client;

/// Lines of its log that are kept, to say why it failed.
const LINES_MAX: usize = 50;
const START_MAX: Duration = Duration::from_secs(120);
const STOP_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// A running server. Dropping it stops it in order, and so does the end of this process, whatever ends it.
pub(crate) struct LocalServer {
    child: Child,
    /// The server's standard input. The server stops when this is dropped.
    _held: ChildStdin,
    url: String,
    /// From the start of the process until it said that it is ready.
    pub(crate) ready_after: Duration,
}

type Log = Arc<Mutex<VecDeque<String>>>;

impl LocalServer {
    /// Starts a server on a free port of this machine, and waits until it is ready. Its data is in that temporary folder, or in a folder of that, which the server
    /// removes if this process does not live to do so.
    pub(crate) fn start((temporary, data): (&Path, &Path), options: &[String]) -> anyhow::Result<Self> {
        let started = Instant::now();
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).arg("--temporary").arg(temporary).args(options);
        // What is set for another server is not meant for this one.
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CELLWRIGHT_")).for_each(|(name, _)| {
            command.env_remove(name);
        });
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the server's process")?;
        let stderr = child.stderr.take().context("cannot read the server's standard error")?;
        let held = child.stdin.take().context("cannot hold the server's standard input")?;
        let log = Log::default();
        follow(stderr, &log)?;
        let mut server = Self { child, _held: held, url: String::new(), ready_after: Duration::ZERO };
        while server.url.is_empty() || said(&log, "ready after").is_none() {
            if let Some(address) = said(&log, "listening on ") {
                server.url = address.split_whitespace().next().unwrap_or_default().to_owned();
            }
            if server.child.try_wait()?.is_some() || started.elapsed() > START_MAX {
                let lines: Vec<String> = log.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
                bail!("the server did not start: {}", lines.join(" / "));
            }
            thread::sleep(POLL);
        }
        server.ready_after = started.elapsed();
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A client of it.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.url, None)?)
    }

    /// Waits until it stops by itself, as it does when the terminal's Ctrl-C reaches both.
    pub(crate) fn wait(mut self) -> anyhow::Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

/// The rest of the line of the log that begins so.
fn said(log: &Log, beginning: &str) -> Option<String> {
    log.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(|line| Some(line.strip_prefix(beginning)?.to_owned()))
}

/// Reads the log to its end, so that the server never waits for a reader.
fn follow(stderr: ChildStderr, log: &Log) -> anyhow::Result<()> {
    let log = Arc::clone(log);
    let read = move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            if log.len() < LINES_MAX {
                log.push_back(line);
            }
        }
    };
    thread::Builder::new().name("server's log".to_owned()).spawn(read).context("cannot start the thread that reads the server's log")?;
    Ok(())
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if asked.elapsed() > STOP_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL);
        }
    }
}
