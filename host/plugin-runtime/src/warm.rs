//! Idle instances: kept per model, so that a request finds one that is started and described, and bounded over all models.
//!
//! When the bound over all models is reached, models that nobody called since the last time give theirs up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The bounds on idle instances, and the models that have some.
pub(crate) struct Warmth<T> {
    per_model_max: usize,
    total_max: usize,
    total: AtomicUsize,
    pools: Mutex<Vec<Weak<Pool<T>>>>,
}

/// The idle instances of one model.
pub(crate) struct Pool<T> {
    idle: Mutex<Vec<T>>,
    called: AtomicBool,
    warmth: Arc<Warmth<T>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Warmth<T> {
    pub(crate) fn new(per_model_max: usize, total_max: usize) -> Self {
        Self { per_model_max, total_max, total: AtomicUsize::new(0), pools: Mutex::default() }
    }

    pub(crate) fn pool(self: &Arc<Self>) -> Arc<Pool<T>> {
        let pool = Arc::new(Pool { idle: Mutex::default(), called: AtomicBool::new(true), warmth: Arc::clone(self) });
        let mut pools = lock(&self.pools);
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Arc::downgrade(&pool));
        pool
    }

    /// Drops the idle instances of all models.
    pub(crate) fn drop_all(&self) {
        self.drop_where(|_| true);
    }

    fn drop_uncalled(&self) {
        self.drop_where(|pool| !pool.called.swap(false, Ordering::Relaxed));
    }

    fn drop_where(&self, which: impl Fn(&Pool<T>) -> bool) {
        let pools: Vec<_> = lock(&self.pools).iter().filter_map(Weak::upgrade).collect();
        for pool in pools {
            if which(&pool) {
                pool.clear();
            }
        }
    }
}

impl<T> Pool<T> {
    pub(crate) fn take(&self) -> Option<T> {
        self.called.store(true, Ordering::Relaxed);
        let instance = lock(&self.idle).pop()?;
        self.warmth.total.fetch_sub(1, Ordering::Relaxed);
        Some(instance)
    }

    /// Keeps an instance, or drops it where enough are kept.
    pub(crate) fn put(&self, instance: T) {
        let one_more = |total| (total < self.warmth.total_max).then_some(total + 1);
        if self.warmth.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            self.warmth.drop_uncalled();
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < self.warmth.per_model_max {
            idle.push(instance);
            return;
        }
        drop(idle);
        self.warmth.total.fetch_sub(1, Ordering::Relaxed);
    }

    fn clear(&self) {
        let instances = std::mem::take(&mut *lock(&self.idle));
        self.warmth.total.fetch_sub(instances.len(), Ordering::Relaxed);
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

    fn held<T>(pool: &Pool<T>) -> usize {
        lock(&pool.idle).len()
    }

    #[test]
    fn a_model_keeps_no_more_than_its_share() {
        let warmth = Arc::new(Warmth::new(2, 10));
        let pool = warmth.pool();
        (0..5).for_each(|instance| pool.put(instance));
        assert_eq!((held(&pool), warmth.total.load(Ordering::Relaxed)), (2, 2));
        assert!(pool.take().is_some() && pool.take().is_some() && pool.take().is_none());
        assert_eq!(warmth.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_model_that_nobody_calls_makes_room_for_one_that_is_called() {
        let warmth = Arc::new(Warmth::new(2, 2));
        let (old, new) = (warmth.pool(), warmth.pool());
        (0..2).for_each(|instance| old.put(instance));
        for instance in 0..3 {
            new.take();
            new.put(instance);
        }
        assert_eq!((held(&old), held(&new)), (0, 1));
    }

    #[test]
    fn a_model_that_goes_takes_its_instances_out_of_the_count() {
        let warmth = Arc::new(Warmth::new(2, 2));
        let pool = warmth.pool();
        pool.put(1);
        drop(pool);
        assert_eq!(warmth.total.load(Ordering::Relaxed), 0);
    }
}
