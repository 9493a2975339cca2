//! `[routes]`: finds the line that a client matches, and checks the lines.

use crate::config::Config;
use crate::error::LoadError;
use crate::syntax::slips::did_you_mean;
use crate::table::RouteLine;
use crate::{Discovery, Route};

/// The client that the lines of `[routes]` are compared with.
#[derive(Clone, Copy, Debug)]
pub struct RouteSubject<'a> {
    /// The database that the client asked for.
    pub database: &'a str,
    /// The user that the client logged in as.
    pub user: &'a str,
    /// The client's `application_name`, as bytes, because it may have any encoding.
    pub application_name: &'a [u8],
    /// A number that the client keeps for its life. It decides whether the client is in the percentage of a
    /// line.
    pub number: u64,
}

impl Config {
    /// Returns the first line of `[routes]` that counts for a client.
    pub fn route_line(&self, client: RouteSubject<'_>) -> Option<&RouteLine> {
        self.routes.iter().find(|line| line.matches(client) && line.is_drawn(client.number))
    }
}

impl RouteLine {
    fn matches(&self, client: RouteSubject<'_>) -> bool {
        let fits = |pattern: &Option<String>, text: &[u8]| {
            pattern.as_ref().is_none_or(|pattern| fits(pattern.as_bytes(), text))
        };
        fits(&self.database, client.database.as_bytes())
            && fits(&self.user, client.user.as_bytes())
            && fits(&self.application_name, client.application_name)
    }

    /// Returns whether this client is in the line's percentage. Each line draws independently, and always
    /// with the same result.
    fn is_drawn(&self, number: u64) -> bool {
        let of_name = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let seed = self.name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, of_name);
        mixed(number ^ seed) % 100 < u64::from(self.percent)
    }
}

/// The last step of SplitMix64, after which neighbouring numbers differ in all bits.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Returns whether a text matches a pattern, in which `*` matches any text.
pub(crate) fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // The state to return to if the pattern after the last `*` does not match: that star takes one more byte.
    let mut again = None;
    while place < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                again = Some((at + 1, place));
                at += 1;
            }
            Some(byte) if *byte == text[place] => (at, place) = (at + 1, place + 1),
            _ => {
                let Some((after_star, from)) = again else { return false };
                (at, place) = (after_star, from + 1);
                again = Some((after_star, from + 1));
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns every fault of the lines.
pub(crate) fn faults(config: &Config) -> Vec<LoadError> {
    let discovers = config.clusters.values().any(|cluster| cluster.discovery != Discovery::Sql);
    let mut faults = Vec::new();
    for line in &config.routes {
        let Some(place) = config.route_places.get(&line.name) else { continue };
        let mut say = |reason: String| {
            let problem = format!("route \"{}\": {reason}", line.name);
            faults.push(place.error(format!("{problem} ({place})"), problem));
        };
        match (line.route, &line.node) {
            (Some(_), Some(_)) => say("route and node cannot stand in one line".to_owned()),
            (None, None) => say("a line needs route or node".to_owned()),
            // Discovered nodes are known to their source only.
            (None, Some(node)) if !discovers && !config.nodes.contains_key(node) => {
                let meant = did_you_mean(node, config.nodes.keys().map(String::as_str));
                say(format!("there is no node \"{node}\" in [nodes]{meant}"));
            }
            (Some(Route::Standby), None) => {
                if let Some(database) = waits_for_ever(config, line) {
                    say(format!(
                        "route=standby, and every node of the cluster of \"{database}\" has weight 0"
                    ));
                }
            }
            _ => {}
        }
    }
    faults
}

/// Returns a database of this line whose clients would wait for a standby that takes no reads.
fn waits_for_ever<'a>(config: &'a Config, line: &RouteLine) -> Option<&'a str> {
    let is_meant =
        |name: &str| line.database.as_ref().is_none_or(|own| fits(own.as_bytes(), name.as_bytes()));
    let mut databases = config.databases.iter().filter(|(name, _)| is_meant(name));
    databases.find(|(_, database)| config.has_only_weight_0(database)).map(|(name, _)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("report", "report", true),
            ("report", "reports", false),
            ("report*", "report", true),
            ("*_ro", "app_ro", true),
            ("*_ro", "app_rot", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("**", "", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_line_is_drawn_by_so_many_clients_and_each_line_by_others() {
        let line = |name: &str, percent| RouteLine { name: name.to_owned(), percent, ..RouteLine::default() };
        let drawn = |line: &RouteLine| (0..10_000).filter(|number| line.is_drawn(*number)).count();
        assert_eq!((drawn(&line("a", 0)), drawn(&line("a", 100))), (0, 10_000));
        let (one, other) = (line("one", 30), line("other", 30));
        assert!((2_800..3_200).contains(&drawn(&one)), "{}", drawn(&one));
        let both = (0..10_000).filter(|number| one.is_drawn(*number) && other.is_drawn(*number)).count();
        assert!((750..1_050).contains(&both), "{both}");
    }

    proptest! {
        #[test]
        fn a_pattern_fits_what_it_was_cut_from(parts in prop::collection::vec("[ab*]{0,3}", 1..5), fill in "[ab]{0,3}") {
            let pattern = parts.join("*");
            let text = pattern.replace('*', &fill);
            prop_assert!(fits(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_pattern_and_any_text_end(pattern in prop::collection::vec(any::<u8>(), 0..40), text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = fits(&pattern, &text);
        }
    }
}
