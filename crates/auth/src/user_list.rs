//! PgBouncer's `auth_file`, with one `"user" "secret"` per line.

use crate::limits::{SECRET_LEN_MAX, USER_LEN_MAX};
use crate::secret::Secret;
use std::collections::BTreeMap;

/// The users of an `auth_file`, by name.
///
/// Grammar: a user name and a secret, both in double quotes (`""` means one quote), with blanks between; the
/// rest of the line is ignored. Lines that begin with `;`, with or without blanks before it, and blank lines
/// are skipped. Any other line ends the reading, as in PgBouncer: users after it do not exist. If a name
/// occurs twice, its last secret counts. Comments and passwords may be in any encoding: a password is the
/// bytes that clients send. Only a name has to be UTF-8, as no client can log in under another.
///
/// Clones share the derived keys of their plain passwords. So pass clones on instead of parsing again, and
/// let a newly parsed list [`inherit`](UserList::inherit) from the one before.
#[derive(Debug, Clone, Default)]
pub struct UserList {
    secrets: BTreeMap<Box<str>, Secret>,
}

impl UserList {
    /// Reads a file's text. Also returns the faults of the text, for the log; they contain no secret.
    pub fn parse(text: &(impl AsRef<[u8]> + ?Sized)) -> (Self, Vec<String>) {
        let mut list = Self::default();
        let mut warnings = Vec::new();
        for (i, line) in text.as_ref().split(|&byte| byte == b'\n').enumerate() {
            let content = line.trim_ascii_start();
            if content.is_empty() || content.starts_with(b";") {
                continue;
            }
            match parse_line(content) {
                Ok((user, secret)) => {
                    if let Ok(user) = String::from_utf8(user) {
                        list.secrets.insert(user.into(), Secret::of(&secret));
                    }
                }
                Err(reason) => {
                    let line_number = i + 1;
                    warnings
                        .push(format!("broken auth file line {line_number}: {reason}; the rest is not read"));
                    break;
                }
            }
        }
        (list, warnings)
    }

    /// Returns the secret of a user.
    pub fn get(&self, user: &str) -> Option<&Secret> {
        self.secrets.get(user)
    }

    /// Takes over the passwords that are the same in an older list, so that they keep their derived keys.
    pub fn inherit(&mut self, older: &Self) {
        for (user, secret) in &mut self.secrets {
            if let (Secret::Plain(new), Some(Secret::Plain(old))) = (&*secret, older.get(user))
                && new.as_bytes() == old.as_bytes()
            {
                *secret = Secret::Plain(old.clone());
            }
        }
    }

    /// Returns all users and their secrets, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.secrets.iter().map(|(user, secret)| (&**user, secret))
    }

    /// Returns the names of all users, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.secrets.keys().map(|name| &**name)
    }

    /// Returns the number of users.
    pub fn len(&self) -> usize {
        self.secrets.len()
    }

    /// Returns whether the list has no users.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (user, rest) = quoted(line).ok_or("expected a user name in double quotes")?;
    if user.len() > USER_LEN_MAX {
        return Err(format!("user name is longer than {USER_LEN_MAX} bytes"));
    }
    let (secret, _ignored) = quoted(rest.trim_ascii_start()).ok_or("expected a secret in double quotes")?;
    if secret.len() > SECRET_LEN_MAX {
        return Err(format!("secret is longer than {SECRET_LEN_MAX} bytes"));
    }
    Ok((user, secret))
}

/// Takes a double-quoted string from the front of `text`. Returns its value and the rest.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut out = Vec::new();
    loop {
        let end = rest.iter().position(|&byte| byte == b'"')?;
        out.extend_from_slice(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix(b"\"") {
            Some(more) => rest = more,
            None => return Some((out, rest)),
        }
        out.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(list: &UserList, user: &str) -> Option<Vec<u8>> {
        match list.get(user)? {
            Secret::Plain(password) => Some(password.as_bytes().to_vec()),
            Secret::Md5(_) | Secret::Scram(_) => None,
        }
    }

    #[test]
    fn lines_comments_and_quotes() {
        let text = "; a comment\n \t; another\n\n\"bob\" \"secret\" ignored\r\n".to_owned()
            + "  \"al\"\"ice\"\t\"a \"\"b\"\" ; c\"\n\"empty\" \"\"";
        let (list, warnings) = UserList::parse(&text);
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(list.names().collect::<Vec<_>>(), ["al\"ice", "bob", "empty"]);
        assert_eq!(plain(&list, "bob").as_deref(), Some(&b"secret"[..]));
        assert_eq!(plain(&list, "al\"ice").as_deref(), Some(&b"a \"b\" ; c"[..]));
        assert_eq!(plain(&list, "empty").as_deref(), Some(&b""[..]));
        assert!(list.get("Bob").is_none());
    }

    #[test]
    fn one_line_in_another_encoding_locks_no_user_out() {
        let text = b"; f\xfcr alle\n\"bob\" \"p\xe4ss\" ; f\xfcr bob\n\"j\xfcrgen\" \"x\"\n\"carol\" \"c\"\n";
        let (list, warnings) = UserList::parse(text);
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(list.names().collect::<Vec<_>>(), ["bob", "carol"]);
        assert_eq!(plain(&list, "bob").as_deref(), Some(&b"p\xe4ss"[..]));
    }

    #[test]
    fn the_last_of_a_name_counts() {
        let (list, _) = UserList::parse("\"a\" \"1\"\n\"a\" \"2\"\n");
        assert_eq!(list.len(), 1);
        assert_eq!(plain(&list, "a").as_deref(), Some(&b"2"[..]));
    }

    #[test]
    fn a_bad_line_ends_the_reading() {
        for bad in ["bob secret", "\"bob", "\"bob\"", "\"bob\" secret", "\"bob\" \"x", "# no comment"] {
            let (list, warnings) = UserList::parse(&format!("\"a\" \"1\"\n{bad}\n\"z\" \"26\"\n"));
            assert_eq!(list.names().collect::<Vec<_>>(), ["a"], "{bad}");
            assert_eq!(warnings.len(), 1, "{bad}");
            assert!(warnings[0].starts_with("broken auth file line 2: "), "{warnings:?}");
        }
    }

    #[test]
    fn warnings_do_not_show_secrets() {
        let (_, warnings) = UserList::parse("\"bob\" hidden");
        assert!(!warnings[0].contains("hidden"));
    }

    #[test]
    fn lengths_are_bounded() {
        let line =
            |user: usize, secret: usize| format!("\"{}\" \"{}\"", "u".repeat(user), "s".repeat(secret));
        assert_eq!(UserList::parse(&line(USER_LEN_MAX, SECRET_LEN_MAX)).0.len(), 1);
        assert_eq!(UserList::parse(&line(USER_LEN_MAX + 1, 1)).0.len(), 0);
        assert_eq!(UserList::parse(&line(1, SECRET_LEN_MAX + 1)).0.len(), 0);
    }

    proptest! {
        #[test]
        fn any_name_and_secret_come_back(user in "[^\r\n]{0,20}", secret in "[^\r\n]{0,20}") {
            let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let (list, warnings) = UserList::parse(&format!("{} {}", quote(&user), quote(&secret)));
            prop_assert!(warnings.is_empty());
            prop_assert_eq!(plain(&list, &user), Some(secret.into_bytes()));
        }

        #[test]
        fn any_text_is_read(text in "[\"; a\n\t\\PC]{0,200}") {
            let (list, warnings) = UserList::parse(&text);
            prop_assert!(warnings.len() <= 1);
            prop_assert!(list.len() <= text.lines().count());
        }
    }
}
