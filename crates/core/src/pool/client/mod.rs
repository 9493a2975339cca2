//! A client of a pool: its states, its arrival, the loop that takes its bytes through its states, its end.

pub(crate) mod arrival;
pub(crate) mod bytes;
pub(crate) mod discard;
pub(crate) mod isolation;
pub(crate) mod leaving;
pub(crate) mod lost_in_flight;
pub(crate) mod rolled_back;
pub(crate) mod state;
pub(crate) mod turned_down;
