//! Simulator, model server and real PostgreSQL clusters for tests

pub mod sim;
