//! When requests are meant to arrive, and of which kind they are: drawn from a seed.

use std::time::{Duration, Instant};

use cellwright_cell_graph::Random;

use super::{Arrivals, Target};

/// One thread's share of the arrivals.
#[derive(Debug)]
pub(crate) struct Schedule {
    next: Instant,
    arrivals: Arrivals,
    /// Mean distance between arrivals.
    distance: Duration,
    random: Random,
}

impl Schedule {
    /// The share of one of so many threads: shares of Poisson arrivals are Poisson arrivals, shares of constant ones are interleaved.
    #[expect(clippy::cast_precision_loss, reason = "threads are few")]
    pub(crate) fn new(arrivals: Arrivals, start: Instant, number: usize, threads: usize, random: Random) -> Self {
        let (next, distance) = match arrivals {
            Arrivals::Poisson(rate) => (start, Duration::from_secs_f64(threads as f64 / rate)),
            Arrivals::Constant(rate) => {
                (start + Duration::from_secs_f64(number as f64 / rate), Duration::from_secs_f64(threads as f64 / rate))
            }
            Arrivals::Closed => (start, Duration::ZERO),
        };
        let mut schedule = Self { next, arrivals, distance, random };
        if matches!(arrivals, Arrivals::Poisson(_)) {
            schedule.next();
        }
        schedule
    }

    /// Mean distance between arrivals; zero in a closed loop.
    pub(crate) const fn distance(&self) -> Duration {
        self.distance
    }

    /// The next moment at which a request is meant to arrive; none in a closed loop, where that is when there is room.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        let now = self.next;
        let factor = match self.arrivals {
            Arrivals::Poisson(_) => self.random.exponential(),
            Arrivals::Constant(_) => 1.0,
            Arrivals::Closed => return None,
        };
        self.next += self.distance.mul_f64(factor);
        Some(now)
    }
}

/// Which target an arrival asks, by weight.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Running sums of the weights, the last being 1.
    upto: Vec<f64>,
    random: Random,
}

impl Choice {
    pub(crate) fn new(targets: &[Target], random: Random) -> Self {
        let total: f64 = targets.iter().map(|target| target.weight).sum();
        let sum = |sum: &mut f64, target: &Target| {
            *sum += target.weight / total;
            Some(*sum)
        };
        Self { upto: targets.iter().scan(0.0, sum).collect(), random }
    }

    pub(crate) fn next(&mut self) -> usize {
        let last = self.upto.len().saturating_sub(1);
        if last == 0 {
            return 0;
        }
        let unit = self.random.unit();
        self.upto.iter().position(|upto| unit <= *upto).unwrap_or(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(arrivals: Arrivals, number: usize, threads: usize, seconds: u64) -> usize {
        let start = Instant::now();
        let mut schedule = Schedule::new(arrivals, start, number, threads, Random::new(7 + number as u64));
        let end = start + Duration::from_secs(seconds);
        std::iter::from_fn(|| schedule.next()).take_while(|next| *next < end).count()
    }

    #[test]
    fn shares_add_up_to_the_rate() {
        let all = |arrivals| (0..3).map(|number| count(arrivals, number, 3, 10)).sum::<usize>();
        assert_eq!(all(Arrivals::Constant(500.0)), 5000);
        // Within five standard deviations.
        assert!(all(Arrivals::Poisson(500.0)).abs_diff(5000) < 360);
    }

    #[test]
    fn poisson_arrivals_vary_as_much_as_they_should() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Arrivals::Poisson(1000.0), start, 0, 1, Random::new(3));
        let times: Vec<f64> = (0..20_000).map(|_| (schedule.next().unwrap() - start).as_secs_f64()).collect();
        let distances: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        let variance = distances.iter().map(|distance| (distance - mean).powi(2)).sum::<f64>() / distances.len() as f64;
        assert!((mean * 1000.0 - 1.0).abs() < 0.05, "{mean}");
        // Of exponential distances, deviation and mean are equal.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn targets_are_chosen_by_weight() {
        let target = |weight| Target { name: String::new(), weight, requests: Vec::new() };
        let mut choice = Choice::new(&[target(1.0), target(3.0)], Random::new(1));
        let second = (0..10_000).filter(|_| choice.next() == 1).count();
        assert!(second.abs_diff(7500) < 250, "{second}");
    }
}
