//! A queue, or a list, that mostly has one entry: the first is kept in place, so that whoever has no other needs no memory elsewhere.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

/// The first entry, and those behind it.
#[derive(Debug)]
pub(crate) struct Few<T> {
    /// There are no others without it.
    first: Option<T>,
    others: Option<Box<Others<T>>>,
}

/// Kept elsewhere, because most have none.
#[derive(Debug)]
struct Others<T>(VecDeque<T>);

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, others: None }
    }
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.as_ref().map_or(0, |others| others.0.len())
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index == 0 { self.first.as_ref() } else { self.others.as_ref()?.0.get(index - 1) }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index == 0 { self.first.as_mut() } else { self.others.as_mut()?.0.get_mut(index - 1) }
    }

    #[inline]
    pub(crate) const fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, entry: T) {
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            let others = &mut self.others.get_or_insert_with(|| Box::new(Others(VecDeque::new()))).0;
            // Who has others mostly has one.
            if others.capacity() == 0 {
                others.reserve_exact(1);
            }
            others.push_back(entry);
        }
    }

    /// Makes room for so many more at once, and no more than that.
    pub(crate) fn reserve(&mut self, more: usize) {
        let elsewhere = (self.len() + more).saturating_sub(1);
        if elsewhere > 0 {
            let others = &mut self.others.get_or_insert_with(|| Box::new(Others(VecDeque::new()))).0;
            others.reserve_exact(elsewhere.saturating_sub(others.len()));
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let next = self.others.as_mut().and_then(|others| others.0.pop_front());
        std::mem::replace(&mut self.first, next)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.others.iter().flat_map(|others| &others.0))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(self.others.iter_mut().flat_map(|others| &mut others.0))
    }

    /// Keeps the memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.first = None;
        if let Some(others) = &mut self.others {
            others.0.clear();
        }
    }
}

impl<T: Default> Few<T> {
    /// The entry with that number, made if need be, and all before it.
    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> &mut T {
        if index == 0 {
            return self.first.get_or_insert_default();
        }
        while self.len() <= index {
            self.push_back(T::default());
        }
        &mut self[index]
    }
}

impl<T> Index<usize> for Few<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        self.get(index).expect("an entry that there is")
    }
}

impl<T> IndexMut<usize> for Few<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.get_mut(index).expect("an entry that there is")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a queue.
        #[test]
        fn few_are_a_queue(changes in prop::collection::vec(0_u8..8, 0..200)) {
            let (mut few, mut queue) = (Few::default(), VecDeque::new());
            for (number, change) in changes.into_iter().enumerate() {
                match change {
                    0..4 => {
                        few.push_back(number);
                        queue.push_back(number);
                    }
                    4..7 => prop_assert_eq!(few.pop_front(), queue.pop_front()),
                    _ => {
                        few.clear();
                        queue.clear();
                    }
                }
                prop_assert!(few.iter().eq(&queue) && few.iter_mut().eq(&mut queue));
                prop_assert_eq!((few.len(), few.is_empty(), few.front()), (queue.len(), queue.is_empty(), queue.front()));
                prop_assert!((0..=queue.len()).all(|index| few.get(index) == queue.get(index)));
                if number % 16 == 15 {
                    let more = queue.len() + number % 3;
                    queue.resize(more + 1, 0);
                    prop_assert_eq!(*few.at(more), 0);
                }
                if let Some(last) = queue.len().checked_sub(1) {
                    (few[last], queue[last]) = (number + 1000, number + 1000);
                    prop_assert_eq!(few[last], queue[last]);
                }
            }
        }
    }
}
