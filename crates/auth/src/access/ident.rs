//! Maps from names of the operating system, or of certificates, to users.

use std::collections::BTreeSet;

use super::tokens;

/// The maps of an `auth_ident_file`: lines `map system-user user`, where the last may be `all`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentMaps {
    /// Lines of a map, a name outside, and a user; `None` means every user.
    lines: BTreeSet<(String, String, Option<String>)>,
}

impl IdentMaps {
    /// Reads a file's text. Also returns a warning for each line that is skipped.
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let mut maps = Self::default();
        let mut warnings = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            match parse_line(line) {
                Ok(None) => {}
                Ok(Some(line)) => {
                    maps.lines.insert(line);
                }
                Err(why) => {
                    warnings
                        .push(format!("could not parse ident config line {number}: {why}; it is skipped"));
                }
            }
        }
        (maps, warnings)
    }

    /// Returns whether the file has a map of this name.
    pub fn has(&self, map: &str) -> bool {
        self.lines.iter().any(|(name, ..)| name == map)
    }

    /// Returns whether the map lets the name `outside` log in as `user`.
    pub fn allows(&self, map: &str, outside: &str, user: &str) -> bool {
        let line = |user: Option<&str>| (map.to_owned(), outside.to_owned(), user.map(str::to_owned));
        self.lines.contains(&line(Some(user))) || self.lines.contains(&line(None))
    }
}

type Line = (String, String, Option<String>);

fn parse_line(line: &str) -> Result<Option<Line>, &'static str> {
    let fields = tokens::fields(line)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let [[map], [outside], [user]] = fields.iter().map(Vec::as_slice).collect::<Vec<_>>()[..] else {
        return Err("expected a map, a system user and a user");
    };
    if !outside.quoted && outside.text.starts_with('/') {
        return Err("regular expressions are not supported");
    }
    let user_name = (!user.is("all")).then(|| user.text.clone());
    Ok(Some((map.text.clone(), outside.text.clone(), user_name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_give_names_their_users() {
        let text = "# comment\nstaff root admin\nstaff \"w w\" alice\nany daemon all\nliteral x \"all\"\n";
        let (maps, warnings) = IdentMaps::parse(text);
        assert_eq!(warnings, Vec::<String>::new());
        assert!(maps.allows("staff", "root", "admin") && maps.allows("staff", "w w", "alice"));
        assert!(!maps.allows("staff", "root", "alice") && !maps.allows("other", "root", "admin"));
        assert!(maps.allows("any", "daemon", "whoever") && !maps.allows("any", "root", "whoever"));
        assert!(maps.allows("literal", "x", "all") && !maps.allows("literal", "x", "alice"));
        assert!(maps.has("any") && !maps.has("none"));
    }

    #[test]
    fn bad_lines_are_skipped_and_told() {
        let (maps, warnings) = IdentMaps::parse("a b\na b c d\na /^x c\na b,c d\n\"a b c\nm s u\n");
        assert_eq!(warnings.len(), 5);
        assert!(warnings[0].starts_with("could not parse ident config line 1: "), "{warnings:?}");
        assert!(maps.allows("m", "s", "u"));
    }
}
