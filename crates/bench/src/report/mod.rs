//! What is told of measurements: statistics, tables, charts, JSON, and lines while one waits.
//!
//! Nothing here may measure.

pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod stats;
pub(crate) mod svg;
pub(crate) mod table;
