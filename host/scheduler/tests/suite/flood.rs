//! What a tenant's clients wait while another tenant floods, in virtual time: a device that runs one task after the other, requests at random.

use std::collections::BTreeMap;

use cellwright_scheduler::{Config, RequestId, Time};

use super::dice::Dice;
use super::fairness::{Crowd, LOAD, Load};

/// Requests that are measured.
const REQUESTS: usize = 4000;
/// Longest sequence of the tenant that is measured; all lengths are equally likely.
const STEPS_MAX: u32 = 12;

/// The model of the tenant that is measured.
const VICTIM: usize = 0;

/// A device's day.
struct Day {
    crowd: Crowd,
    dice: Dice,
    now: u64,
    /// When the task that runs began.
    began: u64,
    /// When each of the measured tenant's requests came.
    came: BTreeMap<RequestId, u64>,
    /// How long those took that have ended.
    took: Vec<u64>,
}

impl Day {
    fn new(weight: u32, flood: Option<Load>) -> Self {
        let loads: Vec<Load> = [Load { weight, backlog: 0, ..LOAD }].into_iter().chain(flood).collect();
        let crowd = Crowd::new(Config::default(), &loads);
        Self { crowd, dice: Dice::new(7), now: 0, began: 0, came: BTreeMap::new(), took: Vec::new() }
    }

    /// Until that time, in which nothing comes but what the flood refills.
    fn pass(&mut self, until: u64) {
        while let Some((_, _, busy)) = self.crowd.running() {
            if self.began + busy > until {
                break;
            }
            self.now = self.began + busy;
            self.began = self.now;
            self.crowd.complete();
            self.crowd.fill();
            self.act();
        }
        if self.crowd.running().is_none() {
            self.began = until;
        }
        self.now = until;
    }

    fn come(&mut self) {
        let steps = self.dice.between(1, STEPS_MAX);
        let id = self.crowd.send(VICTIM, steps);
        self.came.insert(id, self.now);
        self.crowd.fill();
        self.act();
    }

    fn act(&mut self) {
        self.crowd.act(Time(self.now));
        for id in &self.crowd.world.commands.finished {
            self.took.extend(self.came.remove(id).map(|came| self.now - came));
        }
    }

    /// Requests in a nanosecond, if there are always some.
    fn capacity() -> f64 {
        let mut day = Self::new(1, None);
        while day.took.len() < REQUESTS {
            while day.came.len() < 50 {
                day.come();
            }
            let (_, _, busy) = day.crowd.running().expect("there is always something to run");
            day.pass(day.began + busy);
        }
        day.took.len() as f64 / day.now as f64
    }

    /// The 99th percentile of what requests take that come at random, so many in a nanosecond.
    fn p99(weight: u32, rate: f64, flood: Option<Load>) -> u64 {
        let mut day = Self::new(weight, flood);
        let mut next = 0.0;
        while day.took.len() < REQUESTS {
            let throw = (f64::from(day.dice.below(1 << 30)) + 1.0) / f64::from(1 << 30);
            next += -throw.ln() / rate;
            day.pass(next as u64);
            day.come();
        }
        day.took.sort_unstable();
        day.took[REQUESTS * 99 / 100]
    }
}

/// Floods: one model, and many at once.
const FLOODS: [Load; 2] = [Load { backlog: 200, ..LOAD }, Load { models: 10, backlog: 20, ..LOAD }];

/// How many times as long as alone the slowest hundredth takes beside a flood, at that part of what the tenant could have alone.
fn slower(weight: u32, load: f64, flood: Load) -> f64 {
    let rate = Day::capacity() * load;
    Day::p99(weight, rate, Some(flood)) as f64 / Day::p99(weight, rate, None) as f64
}

/// Half of what a tenant could have alone is within its share if its weight is 3 of 4.
#[test]
fn a_tenant_of_weight_takes_no_more_than_twice_as_long_beside_a_flood() {
    for flood in FLOODS {
        let slower = slower(3, 0.5, flood);
        assert!(slower <= 2.0, "{} models: {slower:.2} times", flood.models);
    }
}

/// Among equals whoever computes without a pause has half of the device, so that it takes twice as long; what it waits to begin with is little.
#[test]
fn among_equals_half_a_share_takes_little_more_than_twice_as_long_beside_a_flood() {
    for flood in FLOODS {
        let slower = slower(1, 0.25, flood);
        assert!(slower <= 2.25, "{} models: {slower:.2} times", flood.models);
    }
}
