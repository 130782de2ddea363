//! Who may have a connection, where there are fewer places than clients.
//!
//! Clients of one address may hold a part of the places, and no more than are left, but for a few. So
//! the next address finds some, and does not wait behind connections of an address that has many. A
//! machine may take any address of its IPv6 network, so a network of 64 bits counts as one address.
//! Where all places are taken, connections without a request under way are closed: those that have
//! never had one first, the oldest of them first.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::activity::Activity;

/// Connections that are asked to close at once, so that their list is not gone through for each.
const CLOSED_AT_ONCE: usize = 64;
/// The part of the places that an address may have also if fewer are left, and how many at least.
const FEW: usize = 16;
const FEW_LEAST: usize = 4;
/// A request may be on its way to a connection that was just accepted, or has just had one.
const RESTS_MIN: Duration = Duration::from_secs(1);

/// The places of a listener's connections.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// Of an address, however few are left.
    of_address_few: usize,
    of_address_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// By age.
    connections: BTreeMap<u64, Open>,
    by_address: HashMap<IpAddr, usize>,
    next: u64,
}

#[derive(Debug)]
struct Open {
    activity: Arc<Activity>,
    close: Arc<Notify>,
    since: Instant,
}

/// A connection's place. Given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    address: IpAddr,
    /// Told when the place is needed.
    close: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

/// The address whose clients are counted together.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

impl Places {
    /// So many in all, and so many of one address; `usize::MAX`: addresses do not count.
    pub(super) fn new(max: usize, of_address_max: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, of_address_few: (max / FEW).max(FEW_LEAST), of_address_max, taken: Mutex::default() })
    }

    /// Whether all places are taken.
    pub(super) fn are_taken(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// A place for a connection, as soon as there is one. None: its address has as many as it may.
    pub(super) async fn take(self: &Arc<Self>, address: IpAddr, activity: &Arc<Activity>) -> Option<Place> {
        let address = counted_as(address);
        let (number, close) = {
            let mut taken = self.taken();
            let left = self.free.available_permits().max(self.of_address_few);
            let of_address = taken.by_address.get(&address).copied().unwrap_or_default();
            if self.of_address_max != usize::MAX && of_address >= self.of_address_max.min(left) {
                return None;
            }
            taken.by_address.insert(address, of_address + 1);
            taken.next += 1;
            (taken.next, Arc::<Notify>::default())
        };
        // From here on the address is given back, also if whoever waits leaves.
        let counted = Counted { places: self, address };
        let permit = loop {
            if self.are_taken() {
                self.make_room();
            }
            if let Ok(permit) = tokio::time::timeout(RESTS_MIN / 4, self.free.clone().acquire_owned()).await {
                break permit.ok()?;
            }
        };
        std::mem::forget(counted);
        self.taken().connections.insert(number, Open { activity: activity.clone(), close: close.clone(), since: Instant::now() });
        Some(Place { places: self.clone(), number, address, close, _permit: permit })
    }

    /// Asks connections without a request under way to close.
    fn make_room(&self) {
        let taken = self.taken();
        let rests = |(number, open): (&u64, &Open)| {
            let (has_asked, since) = open.activity.rest()?;
            let is_long = open.since.elapsed() >= RESTS_MIN && (!has_asked || since.elapsed() >= RESTS_MIN);
            is_long.then_some((has_asked, has_asked.then_some(since), *number))
        };
        let mut rest: Vec<_> = taken.connections.iter().filter_map(rests).collect();
        rest.sort_unstable();
        for (.., number) in rest.into_iter().take(CLOSED_AT_ONCE) {
            taken.connections[&number].close.notify_one();
        }
    }

    fn give_back(&self, address: IpAddr) {
        let mut taken = self.taken();
        if let Some(count) = taken.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
            }
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection of an address that is counted and has no place yet.
struct Counted<'a> {
    places: &'a Places,
    address: IpAddr,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.places.give_back(self.address);
    }
}

impl Place {
    /// Of the client, as it is counted.
    pub(super) const fn address(&self) -> IpAddr {
        self.address
    }

    /// Waits until another connection needs the place.
    pub(super) async fn is_needed(&self) {
        self.close.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().connections.remove(&self.number);
        self.places.give_back(self.address);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn take(places: &Arc<Places>, last: u8, activity: &Arc<Activity>) -> Place {
        match poll(places.take(address(last), activity)) {
            Poll::Ready(place) => place.expect("its address may have it"),
            Poll::Pending => panic!("there is a place"),
        }
    }

    #[tokio::test]
    async fn an_address_has_no_more_places_than_it_may() {
        let (places, activity) = (Places::new(64, 32), Activity::new());
        let is_refused = |address| matches!(poll(places.take(address, &activity)), Poll::Ready(None));
        let mut held: Vec<_> = (0..32).map(|_| take(&places, 1, &activity)).collect();
        assert!(is_refused(address(1)));
        assert!(is_refused("::ffff:10.0.0.1".parse().unwrap()), "however it is written");
        for (last, may) in [(2, 16), (3, 8), (4, 4), (5, 4)] {
            held.extend((0..may).map(|_| take(&places, last, &activity)));
            assert!(is_refused(address(last)), "{last} has as many as are left, or a few");
        }
        assert!(poll(places.take(address(6), &activity)).is_pending(), "its first one waits");
        assert_eq!(places.taken().by_address.len(), 5, "who left while it waited is not counted");
        held.drain(..20);
        drop(take(&places, 1, &activity));
    }

    #[tokio::test]
    async fn without_a_bound_an_address_may_have_all_places() {
        let (places, activity) = (Places::new(3, usize::MAX), Activity::new());
        let _held = [(); 3].map(|()| take(&places, 1, &activity));
        assert!(poll(places.take(address(1), &activity)).is_pending());
    }

    #[test]
    fn a_network_that_one_machine_has_counts_as_one_address() {
        let counted = |text: &str| counted_as(text.parse().unwrap()).to_string();
        for (one, other) in [("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"), ("::ffff:10.0.0.1", "10.0.0.1")] {
            assert_eq!(counted(one), counted(other));
        }
        for (one, other) in [("2001:db8:1:2::1", "2001:db8:1:3::1"), ("10.0.0.1", "10.0.0.2"), ("::ffff:10.0.0.1", "::ffff:10.0.0.2")] {
            assert_ne!(counted(one), counted(other));
        }
    }

    #[tokio::test]
    async fn the_oldest_that_never_asked_goes_first_and_none_with_a_request() {
        let places = Places::new(3, usize::MAX);
        let [busy, silent, younger] = [(); 3].map(|()| Activity::new());
        let _request = busy.begin();
        let (busy, silent, younger) = (take(&places, 1, &busy), take(&places, 1, &silent), take(&places, 1, &younger));
        assert!(poll(places.take(address(2), &Activity::new())).is_pending());
        assert!(poll(silent.is_needed()).is_pending(), "its request may be on its way");
        let long_ago = Instant::now().checked_sub(RESTS_MIN).expect("the machine has run for a while");
        places.taken().connections.values_mut().for_each(|open| open.since = long_ago);
        assert!(poll(places.take(address(2), &Activity::new())).is_pending());
        assert!(poll(silent.is_needed()).is_ready() && poll(younger.is_needed()).is_ready());
        assert!(poll(busy.is_needed()).is_pending());
        drop(silent);
        drop(take(&places, 2, &Activity::new()));
    }
}
