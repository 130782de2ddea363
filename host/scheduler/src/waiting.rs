//! Who waits for memory, in a line for each tenant, and whose turn it is.
//!
//! The next place goes to the tenant that holds the least memory for its weight; among equals, to the one that has waited longest since it was last
//! given one. So nobody's number of requests, nor what they say of their rank, keeps another tenant out; and a request that does not fit yet is
//! waited for, so that smaller ones do not starve it. Within a line the lowest rank goes first, then who came first.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::RequestId;
use crate::tenants::TenantIndex;

/// Fraction bits of what a tenant holds for its weight.
const FRACTION: u32 = 16;

/// A place in a line: rank, then order of admission.
pub(crate) type Order = (u32, u64);

/// The lines of a numeric class. Every change takes a time logarithmic in what waits.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// By tenant.
    lines: Vec<Line>,
    /// Those that wait, whose turn it is first.
    turns: BTreeSet<(Turn, TenantIndex)>,
    /// Counts places given and lines begun.
    moment: u64,
}

/// When it is a tenant's turn: the least goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// Slots that it holds, for its weight.
    held: u64,
    /// The moment since which it waits.
    since: u64,
}

#[derive(Debug, Default)]
struct Line {
    weight: u32,
    /// Slots that its requests hold.
    held: u64,
    turn: Turn,
    waiting: BTreeMap<Order, RequestId>,
}

impl Lines {
    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// Tenants that hold memory or wait for some.
    pub(crate) fn tenants(&self) -> usize {
        self.lines.iter().filter(|line| line.held > 0 || !line.waiting.is_empty()).count()
    }

    /// Who gets the next place.
    pub(crate) fn first(&self) -> Option<(TenantIndex, Order, RequestId)> {
        let (_, tenant) = self.turns.first()?;
        let (order, id) = self.lines.get(tenant.index())?.waiting.first_key_value()?;
        Some((*tenant, *order, *id))
    }

    pub(crate) fn join(&mut self, (tenant, weight): (TenantIndex, u32), order: Order, id: RequestId) {
        let now = self.now();
        self.change(tenant, |line| {
            line.weight = weight;
            if line.waiting.is_empty() {
                line.turn.since = now;
            }
            line.waiting.insert(order, id);
        });
    }

    /// A request waits no more.
    pub(crate) fn leave(&mut self, tenant: TenantIndex, order: Order) {
        self.change(tenant, |line| {
            line.waiting.remove(&order);
        });
    }

    /// A tenant was given a place.
    pub(crate) fn hold(&mut self, (tenant, weight): (TenantIndex, u32), slots: u32) {
        let now = self.now();
        self.change(tenant, |line| {
            (line.weight, line.turn.since) = (weight, now);
            line.held += u64::from(slots);
        });
    }

    /// It has given that back.
    pub(crate) fn free(&mut self, tenant: TenantIndex, slots: u32) {
        self.change(tenant, |line| line.held -= u64::from(slots));
    }

    const fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Changes a line, and with it when it is its tenant's turn.
    fn change(&mut self, tenant: TenantIndex, change: impl FnOnce(&mut Line)) {
        if tenant.index() >= self.lines.len() {
            self.lines.resize_with(tenant.index() + 1, Line::default);
        }
        let line = &mut self.lines[tenant.index()];
        if !line.waiting.is_empty() {
            self.turns.remove(&(line.turn, tenant));
        }
        change(line);
        if !line.waiting.is_empty() {
            line.turn.held = (line.held << FRACTION) / u64::from(line.weight.max(1));
            self.turns.insert((line.turn, tenant));
        } else if line.held == 0 {
            *line = Line::default();
        }
    }
}
