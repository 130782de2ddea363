//! How many bytes of requests the server may hold: bodies that arrive, and calls until they have
//! ended.
//!
//! A tenant may hold as much as would then still be free. So some is left for the next tenant,
//! however many of them hold all that they may.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cellwright_registry::TenantName;

use crate::limits::{Limit, LimitReached};
use crate::shed::Shed;

/// Requests up to this size are not counted: many connections hold more than that.
const UNCOUNTED_MAX: usize = 4 << 10;

/// How many bytes of requests a host may hold.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    held: Mutex<HeldBytes>,
    shed: Arc<Shed>,
}

#[derive(Debug, Default)]
struct HeldBytes {
    all: usize,
    /// By those that hold any.
    tenants: HashMap<TenantName, usize>,
}

/// What one request holds of the budget, given back when dropped.
#[derive(Debug)]
pub struct RequestShare {
    budget: Arc<Budget>,
    tenant: TenantName,
    bytes: usize,
}

impl Budget {
    /// `shed` counts what it refuses.
    #[must_use]
    pub fn new(bytes_max: usize, shed: Arc<Shed>) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: Mutex::default(), shed })
    }

    /// A share that holds nothing yet.
    #[must_use]
    pub fn share(self: &Arc<Self>, tenant: &TenantName) -> RequestShare {
        RequestShare { budget: self.clone(), tenant: tenant.clone(), bytes: 0 }
    }

    /// A tenant's request holds `bytes` instead of `before`, if it may. To hold less always
    /// succeeds.
    fn change(&self, tenant: &TenantName, before: usize, bytes: usize) -> Result<(), LimitReached> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let own = held.tenants.get(tenant).copied().unwrap_or(0);
        let (others, sum) = (held.all.saturating_sub(own), own.saturating_sub(before).saturating_add(bytes));
        let free = self.bytes_max.saturating_sub(others);
        // The only one of a tenant is taken wherever there is room: otherwise a large one might
        // never be.
        let may_hold = if own == before { free } else { free / 2 };
        if bytes > before && sum > may_hold {
            let limit = if sum > free { Limit::RequestBytes } else { Limit::TenantRequestBytes };
            return Err(self.shed.count(tenant, limit.reached(self.bytes_max as u64)));
        }
        held.all = others + sum;
        if sum == 0 {
            held.tenants.remove(tenant);
        } else if let Some(own) = held.tenants.get_mut(tenant) {
            *own = sum;
        } else {
            held.tenants.insert(tenant.clone(), sum);
        }
        Ok(())
    }
}

impl RequestShare {
    /// Whose it is.
    #[must_use]
    pub const fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    /// Holds so many bytes from now on. To hold less always succeeds.
    ///
    /// # Errors
    /// If the host or the tenant would hold too many.
    pub fn hold(&mut self, bytes: usize) -> Result<(), LimitReached> {
        let bytes = if bytes <= UNCOUNTED_MAX { 0 } else { bytes };
        if bytes != self.bytes {
            self.budget.change(&self.tenant, self.bytes, bytes)?;
            self.bytes = bytes;
        }
        Ok(())
    }

    /// What it holds, as a share of its own; this one holds nothing then.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let nothing = self.budget.share(&self.tenant);
        std::mem::replace(self, nothing)
    }

    /// Whether a request of that size must hold more.
    #[must_use]
    pub fn is_less_than(&self, bytes: usize) -> bool {
        self.bytes.max(UNCOUNTED_MAX) < bytes
    }
}

impl Drop for RequestShare {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let _ = self.budget.change(&self.tenant, self.bytes, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many times the least that is counted.
    fn hold(share: &mut RequestShare, times: usize) -> Option<u16> {
        share.hold(times * 2 * UNCOUNTED_MAX).err().map(|reached| crate::limits::status(reached.kind()).0)
    }

    fn shares<const N: usize>(budget: &Arc<Budget>, tenant: &str) -> [RequestShare; N] {
        let tenant = TenantName::parse(tenant).unwrap();
        [(); N].map(|()| budget.share(&tenant))
    }

    #[test]
    fn what_was_held_is_given_back() {
        let budget = Budget::new(12 * 2 * UNCOUNTED_MAX, Arc::default());
        let [mut one, mut other] = shares(&budget, "a");
        assert_eq!(hold(&mut one, 13), Some(503));
        assert_eq!(hold(&mut one, 12), None);
        assert_eq!(hold(&mut other, 1), Some(503));
        other.hold(UNCOUNTED_MAX).unwrap();
        assert_eq!(hold(&mut one, 3), None);
        assert_eq!(hold(&mut other, 3), None);
        assert_eq!(hold(&mut other, 4), Some(429));
        drop(one);
        assert_eq!(hold(&mut other, 12), None);
        drop(other);
        let held = budget.held.lock().unwrap();
        assert!(held.all == 0 && held.tenants.is_empty());
    }

    #[test]
    fn whatever_tenants_hold_there_is_some_left_for_another() {
        let budget = Budget::new(120 * 2 * UNCOUNTED_MAX, Arc::default());
        let [mut one, mut more] = shares(&budget, "a");
        assert_eq!([hold(&mut one, 30), hold(&mut more, 31), hold(&mut more, 30)], [None, Some(429), None]);
        let [mut one_of_b, mut more_of_b] = shares(&budget, "b");
        assert_eq!([hold(&mut one_of_b, 20), hold(&mut more_of_b, 11), hold(&mut more_of_b, 10)], [None, Some(429), None]);
        let [mut large, mut small] = shares(&budget, "c");
        assert_eq!([hold(&mut large, 31), hold(&mut large, 30)], [Some(503), None], "the only one of a tenant takes what there is");
        assert_eq!([hold(&mut small, 1), hold(&mut large, 14), hold(&mut small, 1)], [Some(503), None, None]);
        assert_eq!(hold(&mut one, 31), Some(429));
    }
}
