//! Idle instances: kept by model, so that a request finds one that is started and described.
//!
//! They are bounded over all models, in number and in bytes. At a bound, the tenant whose models
//! keep most gives up one instance after another. If nobody keeps more than the tenant that needs
//! room, its own models give up those that were not called since the last time. So no tenant's
//! models are cold because another's are many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How many instances may be idle, and how many bytes of memory they may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmthBounds {
    pub(crate) per_model: usize,
    pub(crate) total: usize,
    pub(crate) bytes: u64,
}

/// The bounds on idle instances, and the models that have some.
pub(crate) struct Warmth<T> {
    bounds: WarmthBounds,
    held: Mutex<Held>,
    pools: Mutex<Vec<Weak<Pool<T>>>>,
}

/// What all pools hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    instances: usize,
    bytes: u64,
}

/// The idle instances of one model.
pub(crate) struct Pool<T> {
    tenant: u32,
    idle: Mutex<Vec<Idle<T>>>,
    called: AtomicBool,
    warmth: Arc<Warmth<T>>,
}

struct Idle<T> {
    instance: T,
    bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Warmth<T> {
    pub(crate) fn new(bounds: WarmthBounds) -> Self {
        Self { bounds, held: Mutex::default(), pools: Mutex::default() }
    }

    /// That of one of a tenant's models.
    pub(crate) fn pool(self: &Arc<Self>, tenant: u32) -> Arc<Pool<T>> {
        let pool = Arc::new(Pool { tenant, idle: Mutex::default(), called: AtomicBool::new(true), warmth: Arc::clone(self) });
        let mut pools = lock(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        pool
    }

    /// Drops an idle instance of the tenant whose models keep most; whether there was one.
    pub(crate) fn drop_one(&self) -> bool {
        let pools = self.pools();
        let most = of_tenants(&pools).into_iter().max_by_key(|(_, bytes)| *bytes);
        most.and_then(|(tenant, _)| pop_of(&pools, tenant)).is_some()
    }

    fn pools(&self) -> Vec<Arc<Pool<T>>> {
        lock(&self.pools).iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes room for an instance; whether there is some.
    fn take_room(&self, bytes: u64) -> bool {
        let mut held = lock(&self.held);
        let has_room = held.instances < self.bounds.total && held.bytes.saturating_add(bytes) <= self.bounds.bytes;
        if has_room {
            *held = Held { instances: held.instances + 1, bytes: held.bytes + bytes };
        }
        has_room
    }

    fn give_back<'a>(&self, idle: impl IntoIterator<Item = &'a Idle<T>>)
    where
        T: 'a,
    {
        let mut held = lock(&self.held);
        for Idle { bytes, .. } in idle {
            *held = Held { instances: held.instances - 1, bytes: held.bytes - bytes };
        }
    }

    /// Makes room for an instance of a tenant's model; whether it did.
    fn make_room(&self, tenant: u32, bytes: u64) -> bool {
        let pools = self.pools();
        while !self.take_room(bytes) {
            let mut of_tenants = of_tenants(&pools);
            let own = of_tenants.entry(tenant).or_default();
            *own += bytes;
            let own = *own;
            let most = of_tenants.into_iter().max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > own);
            let has_made_room = match most {
                Some((most, _)) => pop_of(&pools, most).is_some(),
                None => pools
                    .iter()
                    .filter(|pool| pool.tenant == tenant)
                    .filter(|pool| !pool.called.swap(false, Ordering::Relaxed))
                    .map(|pool| pool.clear())
                    .fold(false, |any, some| any | some),
            };
            if !has_made_room {
                return false;
            }
        }
        true
    }
}

/// Bytes that the idle instances of each tenant have.
fn of_tenants<T>(pools: &[Arc<Pool<T>>]) -> BTreeMap<u32, u64> {
    pools.iter().fold(BTreeMap::new(), |mut of_tenants, pool| {
        *of_tenants.entry(pool.tenant).or_default() += pool.bytes();
        of_tenants
    })
}

/// An instance of a tenant, of the model that keeps most.
fn pop_of<T>(pools: &[Arc<Pool<T>>], tenant: u32) -> Option<T> {
    pools.iter().filter(|pool| pool.tenant == tenant).max_by_key(|pool| pool.bytes())?.pop()
}

impl<T> Pool<T> {
    pub(crate) fn take(&self) -> Option<T> {
        self.called.store(true, Ordering::Relaxed);
        self.pop()
    }

    fn pop(&self) -> Option<T> {
        let idle = lock(&self.idle).pop()?;
        self.warmth.give_back([&idle]);
        Some(idle.instance)
    }

    fn bytes(&self) -> u64 {
        lock(&self.idle).iter().map(|idle| idle.bytes).sum()
    }

    /// Keeps an instance, which has so much memory and counts as its part of all that there may be at least, or drops it where enough are kept.
    pub(crate) fn put(&self, bytes: u64, instance: T) {
        // Of small ones, too, a tenant is to have no more than its part, though their number is what is bounded then.
        let bytes = bytes.max(self.warmth.bounds.bytes / (self.warmth.bounds.total as u64).max(1));
        let is_full = || lock(&self.idle).len() >= self.warmth.bounds.per_model;
        if is_full() || !self.warmth.take_room(bytes) && !self.warmth.make_room(self.tenant, bytes) {
            return;
        }
        let idle = Idle { instance, bytes };
        let mut all = lock(&self.idle);
        if all.len() < self.warmth.bounds.per_model {
            all.push(idle);
            return;
        }
        drop(all);
        self.warmth.give_back([&idle]);
    }

    /// Drops all of them; whether there were any.
    fn clear(&self) -> bool {
        let idle = std::mem::take(&mut *lock(&self.idle));
        self.warmth.give_back(&idle);
        !idle.is_empty()
    }
}

impl<T> Drop for Pool<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warmth<T>(per_model: usize, total: usize) -> Arc<Warmth<T>> {
        Arc::new(Warmth::new(WarmthBounds { per_model, total, bytes: 100 }))
    }

    fn held<T>(pool: &Pool<T>) -> usize {
        lock(&pool.idle).len()
    }

    #[test]
    fn a_model_keeps_no_more_than_its_share() {
        let warmth = warmth(2, 10);
        let pool = warmth.pool(0);
        (0..5).for_each(|instance| pool.put(7, instance));
        assert_eq!((held(&pool), *lock(&warmth.held)), (2, Held { instances: 2, bytes: 20 }));
        assert!(pool.take().is_some() && pool.take().is_some() && pool.take().is_none());
        assert_eq!(*lock(&warmth.held), Held::default());
    }

    #[test]
    fn a_model_that_nobody_calls_makes_room_for_one_that_is_called() {
        let warmth = warmth(2, 2);
        let (old, new) = (warmth.pool(0), warmth.pool(0));
        (0..2).for_each(|instance| old.put(1, instance));
        for instance in 0..3 {
            new.take();
            new.put(1, instance);
        }
        assert_eq!((held(&old), held(&new)), (0, 1));
    }

    #[test]
    fn instances_keep_no_more_memory_than_they_may() {
        let warmth = warmth(10, 10);
        let pools: Vec<_> = (0..3).map(|_| warmth.pool(0)).collect();
        for pool in &pools {
            pool.put(40, ());
        }
        assert!(lock(&warmth.held).bytes <= 100);
        assert_eq!(pools.iter().map(|pool| held(pool)).sum::<usize>(), 2);
        pools[0].put(101, ());
        assert!(lock(&warmth.held).bytes <= 100);
    }

    /// However many models another tenant calls in turn, one that is called by its own finds an instance.
    #[test]
    fn one_tenants_models_do_not_keep_anothers_cold() {
        let warmth = warmth(2, 8);
        let many: Vec<_> = (0..20).map(|_| warmth.pool(1)).collect();
        let one = warmth.pool(2);
        for pool in many.iter().cycle().take(100) {
            pool.take();
            pool.put(1, ());
        }
        one.take();
        one.put(1, ());
        assert_eq!(held(&one), 1);
        for (number, pool) in many.iter().cycle().take(100).enumerate() {
            pool.take();
            pool.put(1, ());
            if number % 5 == 0 {
                assert!(one.take().is_some(), "cold after {number} calls of others");
                one.put(1, ());
            }
        }
        assert!(lock(&warmth.held).instances <= 8);
    }

    #[test]
    fn where_none_is_left_for_a_call_the_tenant_that_keeps_most_gives_one_up() {
        let warmth = warmth(4, 8);
        let (many, one) = (warmth.pool(1), warmth.pool(2));
        (0..3).for_each(|_| many.put(1, ()));
        one.put(1, ());
        assert!(warmth.drop_one() && warmth.drop_one());
        assert_eq!((held(&many), held(&one)), (1, 1));
        assert!(warmth.drop_one() && warmth.drop_one() && !warmth.drop_one());
    }

    #[test]
    fn a_model_that_goes_takes_its_instances_out_of_the_count() {
        let warmth = warmth(2, 2);
        let pool = warmth.pool(0);
        pool.put(1, 1);
        drop(pool);
        assert_eq!(*lock(&warmth.held), Held::default());
    }
}
