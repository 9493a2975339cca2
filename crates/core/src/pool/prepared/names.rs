//! The names that a client gives its prepared statements.
//!
//! A name must be found in nearly every message of a client that prepares its statements. Most clients have a few names, which are compared
//! one by one. A client with more names pays for hashing them, with a hash that it cannot foresee, because clients choose the names. This
//! file must never hold a name twice.

use std::collections::HashMap;

/// The number of names that are compared one by one.
const FEW: usize = 8;

/// Values by name.
pub(crate) struct Names<T> {
    few: Vec<(Box<[u8]>, T)>,
    /// The names that were added when `few` was full.
    many: HashMap<Box<[u8]>, T>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { few: Vec::new(), many: HashMap::new() }
    }
}

impl<T> Names<T> {
    /// Returns the value of a name.
    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<&T> {
        match self.few.iter().find(|(known, _)| is_same(known, name)) {
            Some((_, value)) => Some(value),
            None if self.many.is_empty() => None,
            None => self.many.get(name),
        }
    }

    /// Returns the value of a name, to be changed.
    pub(crate) fn get_mut(&mut self, name: &[u8]) -> Option<&mut T> {
        match self.place(name) {
            Some(place) => self.few.get_mut(place).map(|(_, value)| value),
            None => self.many.get_mut(name),
        }
    }

    #[inline]
    fn place(&self, name: &[u8]) -> Option<usize> {
        self.few.iter().position(|(known, _)| is_same(known, name))
    }

    /// Gives a name a value, and returns the value that it had.
    pub(crate) fn insert(&mut self, name: Box<[u8]>, value: T) -> Option<T> {
        if let Some(place) = self.place(&name) {
            return Some(std::mem::replace(&mut self.few[place].1, value));
        }
        if self.few.len() < FEW && !self.many.contains_key(&name) {
            self.few.push((name, value));
            return None;
        }
        self.many.insert(name, value)
    }

    /// Removes a name.
    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<(Box<[u8]>, T)> {
        match self.place(name) {
            Some(place) => Some(self.few.swap_remove(place)),
            None => self.many.remove_entry(name),
        }
    }

    /// Returns the names with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &T)> {
        let few = self.few.iter().map(|(name, value)| (&**name, value));
        few.chain(self.many.iter().map(|(name, value)| (&**name, value)))
    }

    /// Removes the entries for which `wanted` is true, and returns their values.
    pub(crate) fn take_if(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken: Vec<T> =
            self.few.extract_if(.., |(_, value)| wanted(value)).map(|(_, value)| value).collect();
        taken.extend(self.many.extract_if(|_, value| wanted(value)).map(|(_, value)| value));
        taken
    }

    /// Removes all names, and returns them with their values.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Box<[u8]>, T)> + '_ {
        self.few.drain(..).chain(self.many.drain())
    }

    /// The number of names.
    pub(crate) fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }
}

/// Whether two names are the same. The last byte is compared first: names that are counted up differ at their end.
#[inline]
fn is_same(known: &[u8], name: &[u8]) -> bool {
    known.last() == name.last() && *known == *name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The names behave as a map, whether there are few or many.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u8..24, 0u8..4, any::<u16>()), 0..120)) {
            let (mut names, mut map) = (Names::default(), BTreeMap::new());
            for (name, step, value) in steps {
                let name = format!("S_{name}").into_bytes();
                match step {
                    0 | 1 => prop_assert_eq!(
                        names.insert(name.clone().into(), value),
                        map.insert(name.clone(), value)
                    ),
                    2 => prop_assert_eq!(names.remove(&name).map(|(_, value)| value), map.remove(&name)),
                    _ => {
                        let odd = |value: &u16| value % 7 == 1;
                        let mut taken = names.take_if(odd);
                        let mut expected: Vec<u16> = map.extract_if(.., |_, value| odd(value)).map(|(_, v)| v).collect();
                        taken.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(taken, expected);
                    }
                }
                prop_assert_eq!(names.get(&name), map.get(&name));
                prop_assert_eq!(names.len(), map.len());
                let mut all: Vec<_> = names.iter().map(|(name, value)| (name.to_vec(), *value)).collect();
                all.sort_unstable();
                prop_assert_eq!(all, map.clone().into_iter().collect::<Vec<_>>());
            }
            prop_assert_eq!(names.drain().count(), map.len());
            prop_assert_eq!(names.len(), 0);
        }
    }
}
