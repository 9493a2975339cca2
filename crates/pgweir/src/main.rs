//! The pooler binary.
fn main() {}
