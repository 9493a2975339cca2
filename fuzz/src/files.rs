//! Several files in one input.

use std::collections::BTreeMap;

/// A line of the input that begins so starts another file; its name is the rest of the line.
const FILE_MARK: &str = "%file ";

/// The files of an input, by name. Its first lines are the file `main`.
pub(crate) fn split<'a>(text: &'a str, main: &'a str) -> BTreeMap<&'a str, String> {
    let mut files = BTreeMap::from([(main, String::new())]);
    let mut name = main;
    for line in text.split_inclusive('\n') {
        match line.strip_prefix(FILE_MARK) {
            Some(next) => name = next.trim(),
            None => files.entry(name).or_default().push_str(line),
        }
    }
    files
}
