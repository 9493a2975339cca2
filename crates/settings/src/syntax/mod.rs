//! The syntax of settings: the ini dialect, connection strings, values, and suggestions for misspelled names.
//!
//! Nothing here may know what a setting does.

pub(crate) mod connstr;
pub(crate) mod entries;
pub(crate) mod hosts;
pub(crate) mod ini;
pub(crate) mod number;
pub(crate) mod slips;
pub(crate) mod value;
pub(crate) mod vip;
