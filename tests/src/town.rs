//! A server of tenants who do not trust each other: one asks honestly while another, or a client
//! without a key, attacks.

use std::io::{self, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::runtime::Builder;

use crate::archives::Tar;
use crate::bundle_folder::BundleFolder;
use crate::neighbours::SetOnDrop;
use crate::platform::summing;
use crate::server::{Answer, PATIENCE, Server, figure, is_sum, sum};

/// How often the neighbour asks: 20 times a second.
const EVERY: Duration = Duration::from_millis(50);
/// How long a task may keep a device.
const TASK_MAX: Duration = Duration::from_millis(50);
/// By which a change of the neighbour's model may take longer beside an attack.
const LONGER_MAX: Duration = Duration::from_secs(2);
/// MiB by which the server may grow beside one, if not told otherwise.
const GROWTH_MAX: usize = 1024;

/// A server with an operator's key, and two tenants with keys.
pub struct Town {
    /// The server.
    pub server: Server,
    /// The operator's key.
    pub operator: String,
    /// The neighbour's key, whose model is called `sums`.
    pub neighbour: String,
    /// The attacker's key.
    pub attacker: String,
    /// MiB by which the server may grow beside an attack.
    pub growth_max: usize,
    /// Uploads of the neighbour's second model.
    uploads: AtomicU32,
}

/// How the neighbour fared.
#[derive(Debug)]
pub struct Fared {
    /// How long each right answer took, ascending.
    pub times: Vec<Duration>,
    /// What else came.
    pub failures: Vec<String>,
}

impl Fared {
    /// The time that so large a fraction of answers did not exceed.
    ///
    /// # Panics
    /// If there was no answer.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Duration {
        let position = (self.times.len() as f64 * fraction).ceil() as usize;
        self.times[position.clamp(1, self.times.len()) - 1]
    }
}

impl Town {
    /// Starts it, with the neighbour's model.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        let server = Server::start(options);
        let key = |operator: &str, tenant: &str, scopes: &[&str]| {
            let asked = json!({ "tenant": tenant, "scopes": scopes, "label": "" });
            let made = server.send("POST", "/v1/keys", &[("authorization", operator)], asked.to_string().as_bytes());
            assert_eq!(made.status, 201, "{}", made.text());
            format!("Bearer {}", made.json()["secret"].as_str().expect("a secret"))
        };
        let operator = key("", "operator", &["admin"]);
        let [neighbour, attacker] = ["neighbour", "attacker"].map(|name| {
            let tenant = json!({ "name": name }).to_string();
            let made = server.send("POST", "/v1/tenants", &[("authorization", &operator)], tenant.as_bytes());
            assert_eq!(made.status, 201, "{}", made.text());
            key(&operator, name, &["infer", "upload", "admin"])
        });
        let town = Self { server, operator, neighbour, attacker, growth_max: GROWTH_MAX, uploads: AtomicU32::new(0) };
        for (model, bundle) in [("sums", BundleFolder::summing()), ("changed", summing(-1.0))] {
            let uploaded = town.upload(&town.neighbour, model, &bundle);
            assert_eq!(uploaded.status, 201, "{}", uploaded.text());
        }
        town
    }

    /// Sends a request with a key.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn send(&self, key: &str, method: &str, path: &str, body: &[u8]) -> Answer {
        self.server.send(method, path, &[("authorization", key)], body)
    }

    /// Uploads a bundle.
    ///
    /// # Panics
    /// If it is not answered.
    #[must_use]
    pub fn upload(&self, key: &str, model: &str, bundle: &BundleFolder) -> Answer {
        self.send(key, "PUT", &format!("/v1/models/{model}"), &Tar::of(bundle.path()).finish())
    }

    /// Sends so many requests of the neighbour, 20 in a second.
    fn ask(&self, count: usize) -> Fared {
        let mut fared = Fared { times: Vec::new(), failures: Vec::new() };
        let (mut connection, mut next) = (None, Instant::now());
        for seed in 0..count {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next += EVERY;
            let (body, began) = (sum(seed, 3), Instant::now());
            match self.ask_on(&mut connection, &body) {
                Ok(answer) if is_sum(&answer, seed, 3) => fared.times.push(began.elapsed()),
                Ok(answer) => fared.failures.push(format!("{} {}", answer.status, answer.text())),
                Err(cause) => fared.failures.push(cause.to_string()),
            }
        }
        fared.times.sort_unstable();
        fared
    }

    /// On a connection that is kept.
    fn ask_on(&self, connection: &mut Option<BufReader<TcpStream>>, body: &Value) -> io::Result<Answer> {
        let mut kept = match connection.take() {
            Some(kept) => kept,
            None => {
                let stream = TcpStream::connect(self.server.address())?;
                stream.set_read_timeout(Some(PATIENCE))?;
                BufReader::new(stream)
            }
        };
        let (key, body) = (&self.neighbour, body.to_string());
        let length = body.len();
        let head = format!("POST /v2/models/sums/infer HTTP/1.1\r\nhost: a\r\nauthorization: {key}\r\ncontent-length: {length}\r\n\r\n");
        kept.get_mut().write_all((head + &body).as_bytes())?;
        let answer = Answer::read(&mut kept)?.ok_or_else(|| io::Error::other("the connection was closed"))?;
        *connection = Some(kept);
        Ok(answer)
    }

    /// How long the neighbour's changes of a model take, each by itself.
    fn changes(&self) -> Vec<(&'static str, Duration)> {
        let change = |method: &str, path: &str| {
            let answer = self.send(&self.neighbour, method, path, b"");
            assert!(matches!(answer.status, 200 | 204), "{path}: {}", answer.text());
        };
        let upload = || {
            let bundle = summing(self.uploads.fetch_add(1, Ordering::Relaxed) as f32);
            let answer = self.upload(&self.neighbour, "changed", &bundle);
            assert_eq!(answer.status, 201, "{}", answer.text());
        };
        let steps: [(&str, &dyn Fn()); 5] = [
            ("upload", &upload),
            ("activation", &|| change("POST", "/v1/models/changed/versions/1/activate")),
            ("rollback", &|| change("POST", "/v1/models/changed/rollback")),
            ("unload", &|| change("POST", "/v2/repository/models/changed/unload")),
            ("load", &|| change("POST", "/v2/repository/models/changed/load")),
        ];
        let timed = |(name, step): (&'static str, &dyn Fn())| {
            let began = Instant::now();
            step();
            (name, began.elapsed())
        };
        steps.map(timed).to_vec()
    }

    /// Memory that its devices have for requests, in MiB.
    ///
    /// # Panics
    /// If it does not say.
    #[must_use]
    pub fn device_memory(&self) -> usize {
        let page = self.send(&self.operator, "GET", "/metrics", b"").text();
        (figure(&page, "cellwright_slots", "") as usize * 64) >> 20
    }

    /// Memory that the server has taken, in MiB.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn resident(&self) -> usize {
        let said = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).expect("it runs");
        let line = said.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a figure");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") >> 10
    }

    /// Asks and changes a model as the neighbour while somebody attacks. He must get his answers,
    /// nearly as soon as alone, and changes must be nearly as fast. The server must not grow much.
    /// A machine that is busy with something else gets a second try.
    ///
    /// # Panics
    /// If he does not.
    pub fn endures(&self, requests: usize, fraction: f64, attack: impl Fn(&AtomicBool) + Sync) {
        let alone = self.ask(requests / 2);
        assert_eq!(alone.failures, [""; 0], "alone");
        let (bound, changes_alone, before) = (5 * alone.quantile(fraction) + TASK_MAX, self.changes(), self.resident());
        let mut said = String::new();
        for _ in 0..2 {
            let over = AtomicBool::new(false);
            let (fared, changes) = thread::scope(|scope| {
                let attacking = scope.spawn(|| attack(&over));
                let fared = {
                    let _over = SetOnDrop(&over);
                    // The attack is under way.
                    thread::sleep(Duration::from_millis(300));
                    let changing = scope.spawn(|| self.changes());
                    (self.ask(requests), changing.join().expect("changes are made"))
                };
                attacking.join().expect("the attack runs");
                fared
            });
            let grown = self.resident().saturating_sub(before);
            assert!(grown < self.growth_max, "{grown} MiB");
            let late = changes.iter().zip(&changes_alone).find(|((_, beside), (_, alone))| *beside > *alone + LONGER_MAX);
            let failed_max = requests / 1000;
            if fared.failures.len() <= failed_max && fared.quantile(fraction) <= bound && late.is_none() {
                return;
            }
            said = format!(
                "{} failures, {:?}; {:?} where {bound:?} are allowed; changes beside and alone: {late:?}",
                fared.failures.len(),
                fared.failures.first(),
                fared.times.get(fared.times.len() * 9 / 10)
            );
        }
        panic!("{said}");
    }
}

/// Does something again and again until the attack is over.
pub fn until(over: &AtomicBool, mut attack: impl FnMut()) {
    while !over.load(Ordering::Acquire) {
        attack();
    }
}

/// Keeps something until the attack is over.
pub fn hold<T>(over: &AtomicBool, held: T) {
    until(over, || thread::sleep(Duration::from_millis(10)));
    drop(held);
}

/// Connections that come from an address of this machine.
///
/// # Panics
/// If the address cannot be had.
#[must_use]
pub fn connect_from(server: &Server, address: [u8; 4], count: usize) -> Vec<TcpStream> {
    let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
    let connect = || {
        runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((address, 0).into())?;
            socket.connect(server.address()).await?.into_std()
        })
    };
    (0..count).map(|_| connect().expect("the server accepts")).collect()
}
