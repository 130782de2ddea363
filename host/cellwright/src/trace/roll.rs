//! Whose a row of a task is: the ids of requests, by the numbers that the engine counts them with.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Calls kept; of older ones, which ended long ago in all likelihood, only the number is known.
const CALLS_MAX: usize = 1 << 18;

/// Requests in the order in which they were handed to the engine. One thread enters them.
#[derive(Default)]
pub(crate) struct Roll(Mutex<Calls>);

#[derive(Default)]
struct Calls {
    kept: VecDeque<Call>,
    /// Number of the next request.
    next: u64,
}

struct Call {
    /// Number of its only request, or of its first row's.
    first: u64,
    id: String,
    rows_are_requests: bool,
}

impl Roll {
    /// The next call, before it is handed over: its first task may run before that comes back. `rows`: how many requests it is, if its rows are some.
    pub(crate) fn enter(&self, id: String, rows: Option<usize>) {
        let mut calls = self.lock();
        if calls.kept.len() >= CALLS_MAX {
            calls.kept.pop_front();
        }
        let first = calls.next;
        calls.kept.push_back(Call { first, id, rows_are_requests: rows.is_some() });
        calls.next = first.saturating_add(rows.map_or(1, |rows| rows as u64));
    }

    /// The call entered last was refused: the engine never counted it.
    pub(crate) fn strike_last(&self) {
        let mut calls = self.lock();
        if let Some(struck) = calls.kept.pop_back() {
            calls.next = struck.first;
        }
    }

    pub(crate) fn name(&self, number: u64) -> String {
        let calls = self.lock();
        let after = calls.kept.partition_point(|call| call.first <= number);
        match after.checked_sub(1).and_then(|at| calls.kept.get(at)).filter(|_| number < calls.next) {
            Some(Call { first, id, rows_are_requests: true }) => format!("{id}[{}]", number - first),
            Some(call) => call.id.clone(),
            None => format!("#{number}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_as_the_engine_counts_them() {
        let roll = Roll::default();
        roll.enter("a".to_owned(), None);
        roll.enter("refused".to_owned(), Some(9));
        roll.strike_last();
        roll.enter("rows".to_owned(), Some(2));
        roll.enter("none".to_owned(), Some(0));
        roll.enter("b".to_owned(), None);
        let names: Vec<String> = (0..5).map(|number| roll.name(number)).collect();
        assert_eq!(names, ["a", "rows[0]", "rows[1]", "b", "#4"]);
    }

    #[test]
    fn old_calls_are_known_by_number_only() {
        let roll = Roll::default();
        (0..=CALLS_MAX).for_each(|call| roll.enter(call.to_string(), None));
        assert_eq!((roll.name(0), roll.name(1)), ("#0".to_owned(), "1".to_owned()));
    }
}
