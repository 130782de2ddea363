//! A recording run again: to see that the same decisions come of it, and to learn what other decisions would have come to.
//!
//! [`replay`] feeds the recorded events to a scheduler and compares what it decides, call by call. On the way it gathers the [`Traffic`]: who came
//! when, how requests went on and how long tasks took. [`what_if`] meets that traffic in virtual time with another policy, limit or number of devices.

mod books;
mod pace;
mod traffic;
mod world;

use cellwright_recording::{Handled, Recording, fingerprint};
use cellwright_scheduler::{Commands, Event, Scheduler, Time};

use crate::error::Error;
use crate::meter::Meter;
use crate::outcome::{self, Outcome};
use books::Books;
pub use traffic::Traffic;
pub use world::{Change, what_if};

/// How often progress is told: once for so many calls.
const PROGRESS_EVERY: u64 = 1 << 12;

/// What came of a replay.
#[derive(Debug)]
pub struct Replayed {
    /// Calls of the scheduler.
    pub calls: u64,
    /// The first call (from 1) in which something else was decided than was recorded; nothing after it was looked at.
    pub different: Option<u64>,
    /// Latency and throughput as they were, between the first request and the last answer. Times end when the scheduler heard of them.
    pub outcome: Outcome,
    /// What was asked of the scheduler.
    pub traffic: Traffic,
}

/// Replays a recording; `progress` is told how many calls were made.
///
/// # Errors
/// If the recording cannot be read, or is damaged.
pub fn replay(recording: &mut Recording, progress: &mut dyn FnMut(u64)) -> Result<Replayed, Error> {
    let mut player = Player::new(Scheduler::new(recording.config()));
    let mut different = None;
    while let Some(call) = recording.next_call()? {
        player.calls += 1;
        if !player.call(call) {
            different = Some(player.calls);
            break;
        }
        if player.calls.is_multiple_of(PROGRESS_EVERY) {
            progress(player.calls);
        }
    }
    Ok(player.end(recording, different))
}

struct Player {
    scheduler: Scheduler,
    commands: Commands,
    books: Books,
    traffic: Traffic,
    meter: Meter,
    recorder: outcome::Recorder,
    calls: u64,
    workers: u32,
}

impl Player {
    fn new(scheduler: Scheduler) -> Self {
        Self {
            scheduler,
            commands: Commands::default(),
            books: Books::default(),
            traffic: Traffic::default(),
            meter: Meter::default(),
            recorder: outcome::Recorder::new(0, 0, None),
            calls: 0,
            workers: 0,
        }
    }

    /// Makes a call again; whether the same was decided.
    fn call(&mut self, call: Handled) -> bool {
        let Handled { now, mut events, ended, decisions } = call;
        let Self { meter, traffic, .. } = self;
        traffic.pace.at(now.0, meter);
        meter.told_and(now, &events, &ended, |tasks, busy_ns| traffic.pace.took(tasks, busy_ns));
        for event in &events {
            self.told(now, event);
        }
        self.scheduler.handle(now, &mut events, &mut self.commands);
        self.decided(now);
        fingerprint::of_commands(&self.commands) == decisions
    }

    fn told(&mut self, now: Time, event: &Event) {
        match event {
            Event::Submit(submission) => {
                let number = self.traffic.arrive(now, submission);
                self.books.arrive(submission.request, number, now.0, submission.growth.clone());
                self.recorder.arrived(now.0);
            }
            Event::Grow { request, growth } => {
                let Some((number, trigger)) = self.books.trigger(*request, now.0) else { return };
                self.traffic.grow(number, growth.clone(), trigger);
                self.books.grow(*request, growth.clone());
            }
            Event::Close(request) => {
                let Some((number, trigger)) = self.books.trigger(*request, now.0) else { return };
                self.traffic.close(number, trigger);
            }
            Event::Cancel(request) => {
                let Some((number, _)) = self.books.trigger(*request, now.0) else { return };
                self.traffic.cancel(number, now);
            }
            Event::Done { worker, up_to, busy_ns, stopped, failed } => {
                for (lane, step) in stopped {
                    if let Some((number, chain)) = self.books.stop(*lane, *step) {
                        self.traffic.stop(number, chain, *step);
                    }
                }
                for lane in failed {
                    if let Some((number, chain)) = self.books.chain_of(*lane) {
                        self.traffic.fail(number, chain);
                    }
                }
                self.recorder.busy(now.0.saturating_sub(*busy_ns), now.0);
                self.books.complete(*worker, *up_to, now.0);
            }
            Event::Paused { worker, seq, busy_ns } => {
                self.recorder.busy(now.0.saturating_sub(*busy_ns), now.0);
                self.books.pause(*worker, *seq);
            }
            Event::WorkerUp { .. } => {
                self.workers += 1;
                self.traffic.host(now, event);
            }
            Event::ModelUp(_) | Event::ModelDown(_) | Event::TenantWeight { .. } => self.traffic.host(now, event),
            Event::WorkerDown(_) | Event::Moved(_) | Event::Wake => {}
        }
    }

    fn decided(&mut self, now: Time) {
        self.meter.decided(&self.commands);
        self.books.follow(&self.commands, now.0);
        for launch in &self.commands.launches {
            self.recorder.task(now.0, launch);
        }
        for request in &self.commands.finished {
            if let Some(life) = self.books.end(*request) {
                self.traffic.end(now);
                self.recorder.finished(life.arrived_ns, life.started_ns.unwrap_or(now.0), now.0);
            }
        }
        for (request, _) in &self.commands.failed {
            if let Some(life) = self.books.end(*request) {
                self.traffic.end(now);
                self.recorder.failed(life.arrived_ns, now.0);
            }
        }
    }

    fn end(mut self, recording: &Recording, different: Option<u64>) -> Replayed {
        let left: Vec<u64> = self.books.unfinished().collect();
        self.recorder.from(self.traffic.first_ns());
        let outcome = self.recorder.outcome(self.workers.max(1), &left);
        self.traffic.settle(recording.config(), &mut self.meter, outcome.p50_ms);
        Replayed { calls: self.calls, different, outcome, traffic: self.traffic }
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
pub(crate) mod tests;
