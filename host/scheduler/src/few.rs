//! A list that mostly has one entry: the first is kept in place, so that whoever has no other needs no memory elsewhere.

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
struct Others<T>(Vec<T>);

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
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        if index == 0 { self.first.as_ref() } else { self.others.as_ref()?.0.get(index - 1) }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index == 0 { self.first.as_mut() } else { self.others.as_mut()?.0.get_mut(index - 1) }
    }

    #[inline]
    fn push(&mut self, entry: T) {
        if self.first.is_none() {
            self.first = Some(entry);
        } else {
            let others = &mut self.others.get_or_insert_with(|| Box::new(Others(Vec::new()))).0;
            // Who has others mostly has one.
            if others.capacity() == 0 {
                others.reserve_exact(1);
            }
            others.push(entry);
        }
    }
}

impl<T: Default> Few<T> {
    /// The entry with that number, made if need be, and all before it.
    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> &mut T {
        if self.get(index).is_none() {
            self.grow(index);
        }
        &mut self[index]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        while self.len() <= index {
            self.push(T::default());
        }
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
        /// Against a list.
        #[test]
        fn few_are_a_list(count in 0..100_usize) {
            let (mut few, mut list) = (Few::default(), Vec::new());
            for number in 0..count {
                few.push(number);
                list.push(number);
                prop_assert_eq!(few.len(), list.len());
                prop_assert!((0..=list.len()).all(|index| few.get(index) == list.get(index)));
                if number % 16 == 15 {
                    let more = list.len() + number % 3;
                    list.resize(more + 1, 0);
                    prop_assert_eq!(*few.at(more), 0);
                }
                if let Some(last) = list.len().checked_sub(1) {
                    (few[last], list[last]) = (number + 1000, number + 1000);
                    prop_assert_eq!(few[last], list[last]);
                }
            }
        }
    }
}
