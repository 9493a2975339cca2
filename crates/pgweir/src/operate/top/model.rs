//! The contents of the screen as values: readings of the console, the differences between two of them, tables with rows, and the verdict.
//!
//! Nothing here reads a clock, a socket or a terminal.

mod history;
mod picture;
mod rates;
mod reading;
mod tables;
mod value;
mod verdict;

pub(super) use history::History;
pub(super) use picture::Picture;
pub(super) use rates::Rates;
pub(super) use reading::{Reading, Row};
pub(super) use tables::{Column, Line, Side, Tab};
pub(super) use value::{bytes, counted, duration, per_second};
pub(super) use verdict::{Finding, Tone};
