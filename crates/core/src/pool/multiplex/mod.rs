//! Statements of several clients on one server, one after the other: the queue, what it costs, how many servers it takes.

pub(crate) mod estimate;
pub(crate) mod held;
pub(crate) mod pace;
pub(crate) mod pipelined;
pub(crate) mod queue;
