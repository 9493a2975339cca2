//! `route`: the node of a cluster that a client's transactions run on.

use crate::Kind;
use crate::syntax::value::Value;

/// The node of a cluster that a client's transactions run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// The primary.
    Primary,
    /// A standby. While no standby is usable, the client waits.
    Standby,
    /// A standby. While no standby is usable, the primary.
    PreferStandby,
    /// Any node that is usable.
    Any,
    /// A standby for statements that certainly only read, the primary for everything else.
    Auto,
}

impl Route {
    /// The words that may stand in the file.
    pub const WORDS: &'static [&'static str] = &["primary", "standby", "prefer-standby", "any", "auto"];

    const ALL: [Route; 5] = [Route::Primary, Route::Standby, Route::PreferStandby, Route::Any, Route::Auto];

    /// The word for this value.
    pub fn as_str(self) -> &'static str {
        Route::WORDS[self as usize]
    }

    /// Returns the value of a word, in any case. libpq's `read-write` and `read-only` mean the primary and a
    /// standby.
    pub fn of_word(word: &str) -> Option<Route> {
        let is_meant = |route: &Route| word.eq_ignore_ascii_case(route.as_str());
        match word {
            _ if word.eq_ignore_ascii_case("read-write") => Some(Route::Primary),
            _ if word.eq_ignore_ascii_case("read-only") => Some(Route::Standby),
            _ => Route::ALL.into_iter().find(is_meant),
        }
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Value for Route {
    fn parse(text: &str, _: Kind) -> Result<Self, String> {
        Route::of_word(text).ok_or_else(|| format!("it must be one of {}", Route::WORDS.join(", ")))
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(self.as_str().to_owned())
    }

    fn unset() -> Self {
        Route::Primary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_and_written() {
        for route in Route::ALL {
            assert_eq!(Route::of_word(&route.as_str().to_ascii_uppercase()), Some(route));
        }
        assert_eq!(Route::of_word("Read-Only"), Some(Route::Standby));
        assert_eq!(Route::of_word("read-write"), Some(Route::Primary));
        assert_eq!(Route::of_word("primary "), None);
    }
}
