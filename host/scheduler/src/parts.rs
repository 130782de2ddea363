//! How tenants share what there is a bounded amount of: half of it is divided among them by their
//! weights, the other half is for whoever comes first.
//!
//! A tenant may hold its part at any time, if nobody held more before it came. Beyond its part it
//! may take what the others do not have as theirs. A tenant alone may hold everything.

/// What tenants hold of a bounded amount.
#[derive(Debug, Default)]
pub struct Parts {
    max: u64,
    held: u64,
    /// What is left of the parts of all tenants.
    kept: u64,
    /// The parts of all tenants.
    parts: u64,
    weights: u64,
    /// By number.
    tenants: Vec<Share>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// 0: the tenant has no part.
    weight: u32,
    part: u64,
    held: u64,
}

impl Share {
    /// What the tenant may still take of its part.
    const fn left(self) -> u64 {
        self.part.saturating_sub(self.held)
    }
}

impl Parts {
    /// Of so much.
    #[must_use]
    pub const fn new(max: u64) -> Self {
        Self { max, held: 0, kept: 0, parts: 0, weights: 0, tenants: Vec::new() }
    }

    /// There is so much from now on. Nobody has to give anything back.
    pub fn set_max(&mut self, max: u64) {
        self.max = max;
        self.divide();
    }

    /// How much there is.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// A tenant has a part from now on, by its weight; none by a weight of 0.
    pub fn set_weight(&mut self, tenant: u32, weight: u32) {
        let share = self.share(tenant);
        let before = std::mem::replace(&mut share.weight, weight);
        self.weights = self.weights - u64::from(before) + u64::from(weight);
        self.divide();
    }

    /// The tenant's weight; 0: it has no part.
    #[must_use]
    pub fn weight(&self, tenant: u32) -> u32 {
        self.tenant(tenant).weight
    }

    /// Whether more than one tenant has a part.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        self.tenants.iter().filter(|share| share.weight > 0).nth(1).is_some()
    }

    /// What the tenant holds.
    #[must_use]
    pub fn held(&self, tenant: u32) -> u64 {
        self.tenant(tenant).held
    }

    /// The most that the tenant may ever hold as long as the others have their parts.
    #[must_use]
    pub fn most(&self, tenant: u32) -> u64 {
        self.max - (self.parts - self.tenant(tenant).part)
    }

    /// What the tenant may still take of its part.
    #[must_use]
    pub fn left_of_part(&self, tenant: u32) -> u64 {
        self.tenant(tenant).left()
    }

    /// Takes so much for a tenant. False: it may not have it, or there is not as much.
    pub fn take(&mut self, tenant: u32, more: u64) -> bool {
        let may = more <= self.available(tenant);
        if may {
            self.hold(tenant, more);
        }
        may
    }

    /// The tenant holds so much more, of what is [available](Self::available).
    pub(crate) fn hold(&mut self, tenant: u32, more: u64) {
        self.change(tenant, |held| held + more);
    }

    /// What the tenant may take now.
    #[must_use]
    pub fn available(&self, tenant: u32) -> u64 {
        let (own, free) = (self.tenant(tenant).left(), self.max.saturating_sub(self.held));
        free.min(own.max(free.saturating_sub(self.kept - own)))
    }

    /// The tenant holds so much less.
    pub fn give_back(&mut self, tenant: u32, less: u64) {
        self.change(tenant, |held| held.saturating_sub(less));
    }

    fn change(&mut self, tenant: u32, change: impl FnOnce(u64) -> u64) {
        let share = self.share(tenant);
        let before = *share;
        share.held = change(share.held);
        let after = *share;
        self.held = self.held - before.held + after.held;
        self.kept = self.kept - before.left() + after.left();
    }

    /// Divides half of what there is by weights.
    fn divide(&mut self) {
        let (half, weights) = (u128::from(self.max / 2), u128::from(self.weights.max(1)));
        for share in &mut self.tenants {
            share.part = u64::try_from(half * u128::from(share.weight) / weights).unwrap_or(u64::MAX);
        }
        self.parts = self.tenants.iter().map(|share| share.part).sum();
        self.kept = self.tenants.iter().map(|share| share.left()).sum();
    }

    fn tenant(&self, tenant: u32) -> Share {
        self.tenants.get(tenant as usize).copied().unwrap_or_default()
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
            match random.below(9) {
                8 => parts.set_max(random.below(100) as u64),
                0 => parts.set_weight(tenant as u32, random.below(4) as u32),
                1..=4 => {
                    let most = parts.max.max(parts.held);
                    assert!(!parts.take(tenant as u32, amount) || parts.held <= most);
                }
                _ => parts.give_back(tenant as u32, amount.min(parts.tenants.get(tenant).map_or(0, |own| own.held))),
            }
            assert_eq!(parts.kept, parts.tenants.iter().map(|share| share.left()).sum::<u64>());
            assert_eq!(parts.held, parts.tenants.iter().map(|share| share.held).sum::<u64>());
            assert!(parts.most(0) >= parts.max / 2);
        }
    }
}
