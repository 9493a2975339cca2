//! The foundation of the pooler's tests: the simulator, and a stage without faults.
//!
//! [`sim`] runs several machines of `pgweir-core` against model clients and a model PostgreSQL over a virtual
//! network, in virtual time, from a seed. `cargo run -p pgweir-testkit --bin sim` runs seeds; the crate's own
//! tests run a hundred, and show that a broken machine is caught.

pub mod sim;
pub mod stage;
