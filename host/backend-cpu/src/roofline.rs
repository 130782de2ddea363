//! What the processor can do at most, to hold a cell's time against: fused multiply-adds with everything in registers, and reading a buffer once.
//!
//! Measured by as many threads as the worker has, in short turns between its steps, because what a machine gives changes from second to second.

mod peak;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cellwright_cell_graph::typed::Precision;

use crate::domain::{CpuDomain, DomainError};
use crate::level::Level;
use crate::memory::Lines;
use crate::team::Team;
use peak::Unit;

/// Rounds of a burst: a million cycles and more, beside which the microseconds that a hand-over to the threads takes are nothing. Sums that count
/// them are exact in 32-bit floats.
const ROUNDS: usize = 80 << 10;
/// Threads of a measurement wait for the next one spinning, as a worker's do.
const SPIN: Duration = Duration::from_micros(40);

/// A machine's limits, by so many threads, for products at a precision with weights of so many bytes.
pub struct Roofline {
    team: Team,
    level: Level,
    unit: Unit,
    buffer: Lines,
}

impl Roofline {
    /// Makes ready to measure with what the domain's workers compute with, a team of so many threads and a buffer of so many bytes.
    ///
    /// # Errors
    /// If its threads cannot be started.
    pub fn new(domain: &CpuDomain, threads: usize, bytes: usize, precision: Precision) -> Result<Self, DomainError> {
        let team = Team::new(threads.max(1), SPIN, None).map_err(DomainError::Threads)?;
        let mut buffer = Lines::zeroed(bytes);
        buffer.floats_mut().fill(1.0);
        let level = domain.level;
        Ok(Self { team, level, unit: Unit::choose(precision, level, domain.kernels), buffer })
    }

    /// Operations per second of the instruction that the precision's products are made of, a multiply-add counted as two: the median of bursts over
    /// about so much time.
    pub fn flops_per_s(&mut self, time: Duration) -> f64 {
        let unit = self.unit;
        let done = Mutex::new(0.0);
        let burst = median(time, || {
            *done.lock().unwrap_or_else(PoisonError::into_inner) = 0.0;
            self.team.run(&|_| {
                // SAFETY: the unit was chosen for what this processor was found to have.
                let own = unsafe { unit.multiply_adds(ROUNDS) };
                *done.lock().unwrap_or_else(PoisonError::into_inner) += own;
            });
        });
        2.0 * done.into_inner().unwrap_or_else(PoisonError::into_inner) / burst
    }

    /// Bytes per second at which the threads together read the buffer, each a part of its own, from its beginning to its end: the median of passes over
    /// about so much time, one at least.
    pub fn read_bytes_per_s(&mut self, time: Duration) -> f64 {
        let lines = self.buffer.bytes() / LINE;
        let (level, buffer, threads) = (self.level, &self.buffer, self.team.size());
        let pass = median(time, || {
            self.team.run(&|thread| {
                let (first, end) = (lines * thread / threads, lines * (thread + 1) / threads);
                let own = buffer.pointer().wrapping_add(first * LINE);
                // SAFETY: the lines are the buffer's, which is initialised; the level is what this processor was found to have.
                std::hint::black_box(unsafe { sum_lines(level, own.cast(), end - first) });
            });
        });
        (lines * LINE) as f64 / pass
    }
}

/// Does something again and again for about so much time, once at least; the median of how long it took, in seconds. Not the mean, because what else
/// the machine does falls on few of them.
fn median(time: Duration, mut work: impl FnMut()) -> f64 {
    let (mut times, began) = (Vec::new(), Instant::now());
    while times.is_empty() || began.elapsed() < time {
        let start = Instant::now();
        work();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// A cache line.
const LINE: usize = 64;
/// Lines ahead of its use that one is asked for.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 32;

/// Reads lines and adds up what they hold.
///
/// # Safety
/// The lines are readable, and the processor has that level.
unsafe fn sum_lines(level: Level, from: *const f32, lines: usize) -> f32 {
    if lines == 0 {
        // What has no bytes is nowhere.
        return 0.0;
    }
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        level if level >= Level::Avx512 => unsafe { x86::sum_lines_512(from, lines) },
        // SAFETY: the caller's promise.
        _ => sum_floats(unsafe { std::slice::from_raw_parts(from, lines * LINE / size_of::<f32>()) }),
    }
}

/// In as many sums as become four vectors or more, so that it is reading that takes the time.
fn sum_floats(floats: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 32];
    for chunk in floats.chunks(sums.len()) {
        sums.iter_mut().zip(chunk).for_each(|(sum, more)| *sum += more);
    }
    sums.into_iter().sum()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm512_add_ps, _mm512_load_ps, _mm512_reduce_add_ps, _mm512_setzero_ps};

    use super::{AHEAD, LINE};

    /// # Safety
    /// The lines are readable, and each begins at a multiple of its length.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn sum_lines_512(from: *const f32, lines: usize) -> f32 {
        const EACH: usize = LINE / size_of::<f32>();
        let mut sums = [_mm512_setzero_ps(); 8];
        let whole = lines / sums.len() * sums.len();
        for block in (0..whole).step_by(sums.len()) {
            for (line, sum) in sums.iter_mut().enumerate() {
                let at = from.wrapping_add((block + line) * EACH);
                // SAFETY: the caller's promise; asking for what lies beyond does nothing.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD * EACH).cast());
                    *sum = _mm512_add_ps(*sum, _mm512_load_ps(at));
                }
            }
        }
        for (line, sum) in (whole..lines).zip(&mut sums) {
            // SAFETY: the caller's promise.
            *sum = unsafe { _mm512_add_ps(*sum, _mm512_load_ps(from.wrapping_add(line * EACH))) };
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::DomainOptions;
    use crate::level::Kernels;

    fn domain(level: Option<Level>) -> Arc<CpuDomain> {
        CpuDomain::new(DomainOptions { arena_bytes: Some(1 << 20), level, ..DomainOptions::default() }).unwrap()
    }

    #[test]
    fn limits_are_those_of_the_workers_level() {
        for level in Level::ALL.into_iter().filter(|level| *level <= Level::detect()) {
            for precision in Precision::ALL {
                let roofline = Roofline::new(&domain(Some(level)), 1, 64, precision).unwrap();
                assert_eq!((roofline.level, roofline.unit), (level, Unit::choose(precision, level, Kernels::Best)));
            }
        }
    }

    #[test]
    fn limits_are_of_a_processors_size() {
        for precision in Precision::ALL {
            let mut roofline = Roofline::new(&domain(None), 2, 1 << 20, precision).unwrap();
            let flops = roofline.flops_per_s(Duration::from_millis(2));
            assert!((1e8..1e14).contains(&flops), "{precision} {flops}");
            let read = roofline.read_bytes_per_s(Duration::from_millis(2));
            assert!((1e7..1e14).contains(&read), "{read}");
        }
    }

    #[test]
    fn every_line_is_read() {
        for (count, level) in [257, 5, 1, 0].into_iter().flat_map(|count| [(count, Level::detect()), (count, Level::Portable)]) {
            let mut lines = Lines::zeroed(count * LINE);
            let values: Vec<f32> = (0..count * LINE / size_of::<f32>()).map(|value| (value % 7 + 1) as f32).collect();
            lines.floats_mut().copy_from_slice(&values);
            // SAFETY: the buffer has these lines, and the processor the level.
            let sum = unsafe { sum_lines(level, lines.pointer().cast(), count) };
            assert_eq!(sum, values.iter().sum::<f32>(), "{count} lines, {level:?}");
        }
    }

    #[test]
    fn of_a_buffer_without_bytes_nothing_is_read() {
        let mut roofline = Roofline { level: Level::Portable, ..Roofline::new(&domain(None), 2, 0, Precision::F32).unwrap() };
        assert!(roofline.read_bytes_per_s(Duration::ZERO).abs() < f64::MIN_POSITIVE);
    }
}
