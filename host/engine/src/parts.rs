//! How tenants share what there is a bounded amount of: half of it is divided among them by their
//! weights, the other half is for whoever comes first.
//!
//! A tenant may hold its part at any time, if nobody held more before it came. Beyond its part it
//! may take what the others do not have as theirs. A tenant alone may hold everything. Requests come
//! and go: of their handles a tenant has a part while it has models. Weights stay: of the memory for
//! them every tenant has a part that exists.

/// What tenants hold of a bounded amount.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    max: u64,
    held: u64,
    /// What is left of the parts of all tenants.
    kept: u64,
    weights: u64,
    /// By number.
    tenants: Vec<Share>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// 0: the tenant has no part.
    weight: u32,
    held: u64,
}

impl Parts {
    pub(crate) const fn new(max: u64) -> Self {
        Self { max, held: 0, kept: 0, weights: 0, tenants: Vec::new() }
    }

    /// A tenant has a part from now on, by its weight; none by a weight of 0.
    pub(crate) fn set_weight(&mut self, tenant: u32, weight: u32) {
        let share = self.share(tenant);
        let before = std::mem::replace(&mut share.weight, weight);
        self.weights = self.weights - u64::from(before) + u64::from(weight);
        self.kept = self.tenants.iter().map(|share| self.left(*share)).sum();
    }

    pub(crate) fn has_part(&self, tenant: u32) -> bool {
        self.tenants.get(tenant as usize).is_some_and(|share| share.weight > 0)
    }

    /// Takes so much for a tenant. False: it may not have it, or there is not as much.
    pub(crate) fn take(&mut self, tenant: u32, more: u64) -> bool {
        if more > self.free_for(tenant) {
            return false;
        }
        let before = *self.share(tenant);
        self.change(tenant, Share { held: before.held + more, ..before });
        true
    }

    /// How much a tenant may still take.
    pub(crate) fn free_for(&mut self, tenant: u32) -> u64 {
        let own = *self.share(tenant);
        let (free, left) = (self.max.saturating_sub(self.held), self.left(own));
        left.min(free).max(free.saturating_sub(self.kept - left))
    }

    pub(crate) fn held_by(&mut self, tenant: u32) -> u64 {
        self.share(tenant).held
    }

    pub(crate) fn give_back(&mut self, tenant: u32, less: u64) {
        let before = *self.share(tenant);
        self.change(tenant, Share { held: before.held.saturating_sub(less), ..before });
    }

    fn change(&mut self, tenant: u32, after: Share) {
        let before = std::mem::replace(self.share(tenant), after);
        self.held = self.held - before.held + after.held;
        self.kept = self.kept - self.left(before) + self.left(after);
    }

    fn part(&self, weight: u32) -> u64 {
        let part = u128::from(self.max / 2) * u128::from(weight) / u128::from(self.weights.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// What a tenant may still take of its part.
    fn left(&self, share: Share) -> u64 {
        self.part(share.weight).saturating_sub(share.held)
    }

    fn share(&mut self, tenant: u32) -> &mut Share {
        let index = tenant as usize;
        if index >= self.tenants.len() {
            self.tenants.resize(index + 1, Share::default());
        }
        &mut self.tenants[index]
    }
}

#[cfg(test)]
mod tests {
    use cellwright_cell_graph::Random;

    use super::*;

    #[test]
    fn a_tenant_alone_may_have_everything() {
        let mut parts = Parts::new(10);
        parts.set_weight(3, 1);
        assert!((0..10).all(|_| parts.take(3, 1)) && !parts.take(3, 1));
        parts.give_back(3, 4);
        assert!(!parts.take(3, 5) && parts.take(3, 4));
    }

    #[test]
    fn whatever_others_hold_each_can_have_its_part() {
        let mut parts = Parts::new(100);
        [(0, 1), (1, 3)].into_iter().for_each(|(tenant, weight)| parts.set_weight(tenant, weight));
        let all = |parts: &mut Parts, tenant| (0..).take_while(|_| parts.take(tenant, 1)).count();
        assert_eq!(all(&mut parts, 0), 100 - 37, "all but the other's part of 50 by weights");
        assert_eq!(all(&mut parts, 1), 37);
        parts.set_weight(2, 4);
        assert_eq!(all(&mut parts, 2), 0, "who comes later waits");
        parts.give_back(0, 30);
        assert_eq!(all(&mut parts, 0), 5, "of 30 the newcomer has 25");
        assert_eq!(all(&mut parts, 2), 25);
        parts.set_weight(2, 0);
        parts.give_back(2, 25);
        assert_eq!(all(&mut parts, 0), 25);
    }

    #[test]
    fn what_is_kept_is_what_is_left_of_all_parts() {
        let mut random = Random::new(7);
        let mut parts = Parts::new(64);
        for _ in 0..10_000 {
            let (tenant, amount) = (random.below(5), random.below(9) as u64);
            match random.below(8) {
                0 => parts.set_weight(tenant as u32, random.below(4) as u32),
                1..=4 => drop(parts.take(tenant as u32, amount)),
                _ => parts.give_back(tenant as u32, amount.min(parts.tenants.get(tenant).map_or(0, |own| own.held))),
            }
            assert_eq!(parts.kept, parts.tenants.iter().map(|share| parts.left(*share)).sum::<u64>());
            assert_eq!(parts.held, parts.tenants.iter().map(|share| share.held).sum::<u64>());
            assert!(parts.held <= parts.max);
        }
    }
}
