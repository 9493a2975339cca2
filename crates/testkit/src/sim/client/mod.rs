//! Model clients: what they are going to do, how they do it, and what answers they must get.

mod holds;
pub mod message;
pub mod oracle;
pub mod phrases;
pub mod proving;
pub mod run;
pub mod script;
