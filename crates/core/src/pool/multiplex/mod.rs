//! Statements of several clients on one server, one after the other: the queue, what it costs, the number of servers that it takes.

pub(crate) mod estimate;
pub(crate) mod held;
pub(crate) mod pace;
pub(crate) mod pipelined;
pub(crate) mod queue;
