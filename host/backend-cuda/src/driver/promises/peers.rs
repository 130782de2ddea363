//! Devices that read one another's memory by themselves.

use super::{BYTES, Driver, Make, Stream, await_word, fill, good, refused};
use crate::driver::{DeviceAddress, Peer, Pinned};

/// A driver with memory, and what its device knows of another one.
struct Side {
    driver: Box<dyn Driver>,
    stream: Stream,
    at: DeviceAddress,
    word: Pinned,
    told: u64,
    other: Option<(Peer, DeviceAddress)>,
}

impl Side {
    fn new(make: &mut Make<'_>) -> Self {
        let mut driver = make();
        let (stream, at) = (good(driver.stream()), good(driver.allocate(BYTES)));
        let word = good(driver.pinned(8));
        Self { driver, stream, at, word, told: 0, other: None }
    }

    /// Reaches the other's memory, if it can.
    fn reach(&mut self, other: &Self) -> bool {
        let peer = other.driver.peer();
        let reaches = good(self.driver.reach(&peer));
        self.other = Some((peer, other.at));
        reaches
    }

    fn fill(&mut self, offset: usize, bytes: usize, value: u32) {
        // SAFETY: within what was allocated.
        good(unsafe { fill(self.driver.as_mut(), self.stream, self.at.plus(offset), bytes as u64 / 4, value) });
    }

    fn fetch(&mut self, from: usize, to: usize, bytes: usize) -> bool {
        let (peer, base) = self.other.as_ref().unwrap_or_else(|| panic!("nobody was reached"));
        good(self.driver.fetch(self.stream, (peer, base.plus(from)), self.at.plus(to), bytes))
    }

    fn signal(&mut self) {
        self.told += 1;
        good(self.driver.signal(self.stream, &self.word, 0, self.told));
    }

    fn is_done(&mut self) {
        good(await_word(self.driver.as_mut(), &self.word, 0, self.told));
    }

    fn words(&mut self) -> Vec<u32> {
        let mut bytes = vec![0; BYTES];
        good(self.driver.read(self.stream, self.at, &mut bytes));
        bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
    }
}

/// What two devices promise each other, if one reaches the other; else false, and that what is out of reach is refused.
///
/// # Panics
/// If a driver breaks its promise.
pub fn peers(one: &mut Make<'_>, other: &mut Make<'_>) -> bool {
    let (mut one, mut other) = (Side::new(one), Side::new(other));
    let own = one.driver.peer();
    assert!(!good(one.driver.reach(&own)), "a device reaches itself");
    let (peer, at) = (other.driver.peer(), one.at);
    refused("a device that was not asked for", one.driver.fetch(one.stream, (&peer, other.at), at, 16));
    let reaches = one.reach(&other);
    assert_eq!(one.reach(&other), reaches, "a second answer is another one");
    if !reaches {
        refused("a device out of reach", one.driver.fetch(one.stream, (&peer, other.at), at, 16));
        return false;
    }
    assert!(other.reach(&one), "it reaches, and is not reached");
    copies(&mut one, &mut other);
    both_at_once(&mut one, &mut other);
    stays(one, other);
    true
}

/// A copy takes its place in its stream, and what it brings is what was seen to be done on the other device.
fn copies(one: &mut Side, other: &mut Side) {
    let half = BYTES / 2;
    for round in 1..=50 {
        other.fill(0, BYTES, round);
        other.signal();
        one.fill(0, BYTES, 0);
        other.is_done();
        assert!(one.fetch(half, 0, half) && one.fetch(4, half, half / 2 - 4), "a device is lost");
        one.fill(half / 2, 16, 7);
        one.signal();
        one.is_done();
        let mut want = [vec![round; half / 4], vec![round; half / 8 - 1], vec![0; half / 8 + 1]].concat();
        want[half / 8..half / 8 + 4].fill(7);
        assert!(one.words() == want, "what was fetched is not what was there, or not in its place, in round {round}");
    }
}

/// Each fetches from the other, neither waits for it.
fn both_at_once(one: &mut Side, other: &mut Side) {
    let part = BYTES / 64;
    one.fill(0, BYTES, 1);
    other.fill(0, BYTES, 2);
    for side in [&mut *one, &mut *other] {
        side.signal();
        side.is_done();
    }
    // Odd parts come, even ones are read.
    for number in (0..64).step_by(2) {
        assert!(one.fetch(number * part, (number + 1) * part, part) && other.fetch(number * part, (number + 1) * part, part));
    }
    for (side, own, others) in [(one, 1, 2), (other, 2, 1)] {
        side.signal();
        side.is_done();
        let want = [vec![own; part / 4], vec![others; part / 4]].concat().repeat(32);
        assert!(side.words() == want, "two devices that fetch from each other have something else than the other's");
    }
}

/// What a driver leaves stays for those who know its device, and nothing more is taken from it.
fn stays(mut one: Side, mut other: Side) {
    other.fill(0, BYTES, 5);
    other.signal();
    other.is_done();
    assert!(one.fetch(0, 0, BYTES));
    drop(other);
    one.signal();
    one.is_done();
    assert!(one.words().iter().all(|word| *word == 5), "memory that a copy needs went with its driver");
    assert!(!one.fetch(0, 0, 16), "a device whose driver is gone is taken from");
    good(one.driver.check());
}
