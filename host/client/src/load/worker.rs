//! One thread of the load generator: its connections take turns in taking the next arrival, in order.
//!
//! A connection that has nothing to do waits for its turn, takes the next arrival, waits for that moment, passes the turn on and sends. So arrivals
//! are served first come, first served, whoever is free, and one timer is enough. If nobody is free, arrivals are taken late; their latency counts from when they were meant.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cellwright_cell_graph::Random;
use tokio::sync::Mutex;
use tokio::task::LocalSet;

use super::arrivals::{Choice, Schedule};
use super::connection::Connection;
use super::pace::Timer;
use super::report::Tally;
use super::{DRAIN_MAX, Plan, Target};
use crate::trust::Tls;

/// How long opening a connection may take that nobody asks yet: one that takes longer is opened again with its first request, which says so if that fails.
const OPENING_MAX: Duration = Duration::from_secs(1);
/// How long a connection rests after it could not be opened, in a closed loop, where nothing else would slow it down.
const REST: Duration = Duration::from_millis(10);
/// Arrivals that were never sent are counted up to here.
const UNSENT_MAX: u64 = 10_000_000;

/// What one thread is given.
pub(crate) struct Part {
    pub(crate) server: SocketAddr,
    /// None if it is spoken to in clear.
    pub(crate) tls: Option<Tls>,
    pub(crate) targets: Arc<[Target]>,
    /// Which of the threads it is.
    pub(crate) number: usize,
    pub(crate) threads: usize,
    pub(crate) start: Instant,
}

/// One thread, before it runs.
pub(crate) struct Worker {
    part: Part,
    connections: usize,
    schedule: Schedule,
    choice: Choice,
    /// What begins before this does not count.
    from: Instant,
    /// Nothing is sent after this.
    to: Instant,
}

/// What a thread saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) tallies: Vec<Tally>,
    pub(crate) late_max: Duration,
    pub(crate) cpu: Duration,
}

/// What the connections of a thread share.
struct Shared {
    server: SocketAddr,
    tls: Option<Tls>,
    targets: Arc<[Target]>,
    from: Instant,
    to: Instant,
    /// Held by the connection whose turn it is.
    turn: Mutex<Timer>,
    state: RefCell<State>,
}

struct State {
    schedule: Schedule,
    choice: Choice,
    /// For each target, which of its requests comes next.
    next: Vec<usize>,
    tallies: Vec<Tally>,
    late_max: Duration,
}

/// A request that is to be sent.
struct Arrival {
    intended: Instant,
    target: usize,
    request: usize,
}

impl Worker {
    pub(crate) fn new(plan: &Plan, part: Part) -> Self {
        let random = |use_: u64| Random::new(plan.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(part.number as u64 * 2 + use_));
        let schedule = Schedule::new(plan.arrivals, part.start, part.number, part.threads, random(0));
        let choice = Choice::new(&part.targets, random(1));
        let connections = plan.connections / part.threads + usize::from(part.number < plan.connections % part.threads);
        let from = part.start + plan.warm_up;
        Self { connections, schedule, choice, from, to: from + plan.measured, part }
    }

    /// Runs on the calling thread until all is answered, or has been waited for long enough.
    pub(crate) fn run(self) -> io::Result<Seen> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let local = LocalSet::new();
        let seen = local.block_on(&runtime, self.offer())?;
        Ok(Seen { cpu: thread_cpu(), ..seen })
    }

    async fn offer(self) -> io::Result<Seen> {
        let targets = self.part.targets;
        let tallies = targets.iter().map(|_| Tally::new()).collect();
        let next = vec![0; targets.len()];
        let state = State { schedule: self.schedule, choice: self.choice, next, tallies, late_max: Duration::ZERO };
        let turn = Mutex::new(Timer::new(state.schedule.distance())?);
        let state = RefCell::new(state);
        let shared = Rc::new(Shared { server: self.part.server, tls: self.part.tls, targets, from: self.from, to: self.to, turn, state });
        let running: Vec<_> = (0..self.connections).map(|_| tokio::task::spawn_local(Rc::clone(&shared).keep_asking())).collect();
        for connection in running {
            connection.await.map_err(io::Error::other)??;
        }
        let mut state = shared.state.borrow_mut();
        for _ in 0..UNSENT_MAX {
            let Some(intended) = state.schedule.next().filter(|intended| *intended < self.to) else { break };
            state.leave(intended, (self.from, self.to));
        }
        let tallies = std::mem::take(&mut state.tallies);
        Ok(Seen { tallies, late_max: state.late_max, cpu: Duration::ZERO })
    }
}

impl State {
    /// An arrival that waited until the end and is not sent.
    fn leave(&mut self, intended: Instant, (from, to): (Instant, Instant)) {
        let target = self.choice.next();
        if let Some(tally) = self.tallies.get_mut(target).filter(|_| intended >= from) {
            tally.unsent(to.saturating_duration_since(intended));
        }
    }
}

impl Shared {
    /// One connection's life.
    async fn keep_asking(self: Rc<Self>) -> io::Result<()> {
        // At the beginning, so that it is not in what some request takes later.
        let opening = Connection::open(self.server, self.tls.as_ref());
        let mut connection = tokio::time::timeout(OPENING_MAX, opening).await.ok().and_then(Result::ok);
        while let Some(arrival) = self.next().await? {
            let counts = arrival.intended >= self.from;
            let Ok(answer) = tokio::time::timeout_at((self.to + DRAIN_MAX).into(), self.ask(&mut connection, &arrival)).await else {
                let mut state = self.state.borrow_mut();
                let tally = state.tallies.get_mut(arrival.target).filter(|_| counts);
                tally.into_iter().for_each(|tally| tally.latency(arrival.intended.elapsed()));
                break;
            };
            if answer.is_err() {
                connection = None;
            }
            let ended = Instant::now();
            if let Some(tally) = self.state.borrow_mut().tallies.get_mut(arrival.target) {
                tally.ended(answer.as_ref(), ended - arrival.intended, (counts, (self.from..self.to).contains(&ended)));
            }
            if answer.is_err() {
                tokio::time::sleep(REST).await;
            }
        }
        Ok(())
    }

    /// Waits for the next arrival that this connection is to send; none at the end.
    async fn next(&self) -> io::Result<Option<Arrival>> {
        let timer = self.turn.lock().await;
        let intended = self.state.borrow_mut().schedule.next();
        if let Some(intended) = intended {
            timer.until(intended.min(self.to)).await?;
        }
        let now = Instant::now();
        let intended = intended.unwrap_or(now);
        // If the server is too slow, nothing new is learnt from sending all that is late.
        if now >= self.to || intended >= self.to {
            if intended < self.to {
                self.state.borrow_mut().leave(intended, (self.from, self.to));
            }
            return Ok(None);
        }
        drop(timer);
        let mut state = self.state.borrow_mut();
        let target = state.choice.next();
        let mut request = 0;
        if let (Some(next), Some(of)) = (state.next.get_mut(target), self.targets.get(target)) {
            request = *next;
            *next = (request + 1) % of.requests.len().max(1);
        }
        if intended >= self.from {
            state.late_max = state.late_max.max(now.saturating_duration_since(intended));
            state.tallies.iter_mut().skip(target).take(1).for_each(Tally::sent);
        }
        Ok(Some(Arrival { intended, target, request }))
    }

    async fn ask(&self, connection: &mut Option<Connection>, arrival: &Arrival) -> io::Result<super::connection::Answer> {
        let request = self.targets.get(arrival.target).and_then(|target| target.requests.get(arrival.request));
        let request = request.ok_or_else(|| io::Error::other("there is no such request"))?;
        let open = match connection {
            Some(open) => open,
            None => connection.insert(Connection::open(self.server, self.tls.as_ref()).await?),
        };
        let answer = open.ask(request).await?;
        if !answer.keep {
            *connection = None;
        }
        Ok(answer)
    }
}

/// CPU time that the calling thread has used.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
