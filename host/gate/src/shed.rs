//! Counts of what a limit refused before a version of a model saw it. Refused calls of a version
//! are among its own figures.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cellwright_registry::TenantName;

use crate::limits::{Limit, LimitReached};

/// Tenants times kinds that are counted: a server without keys takes any tenant's name.
const COUNTED_MAX: usize = 1 << 16;

/// By tenant and by what was refused.
#[derive(Debug, Default)]
pub struct Shed(Mutex<BTreeMap<(TenantName, &'static str), u64>>);

/// What a limit refuses, for figures; none: calls of a version.
const fn kind(limit: Limit) -> Option<&'static str> {
    match limit {
        Limit::RequestBytes | Limit::TenantRequestBytes | Limit::TenantReads => Some("body"),
        Limit::TenantChanges => Some("change"),
        Limit::TenantLists => Some("list"),
        Limit::TenantUploads => Some("upload"),
        _ => None,
    }
}

impl Shed {
    pub(crate) fn count(&self, tenant: &TenantName, reached: LimitReached) -> LimitReached {
        if let Some(kind) = kind(reached.limit) {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (tenant.clone(), kind);
            if counts.len() < COUNTED_MAX || counts.contains_key(&key) {
                *counts.entry(key).or_default() += 1;
            }
        }
        reached
    }

    /// The counts of a tenant, or of all.
    #[must_use]
    pub fn counts(&self, tenant: Option<&TenantName>) -> Vec<(TenantName, &'static str, u64)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |of: &TenantName| tenant.is_none_or(|tenant| tenant == of);
        counts.iter().filter(|((of, _), _)| is_meant(of)).map(|((of, kind), count)| (of.clone(), *kind, *count)).collect()
    }
}
