//! From accept to the hand-over to a pool: first packets, the startup packet, the proof of the user.

pub(crate) mod admission;
pub(crate) mod exchange;
pub(crate) mod greeting;
pub mod inquiry;
pub(crate) mod log;
pub(crate) mod proof;
pub(crate) mod startup;
