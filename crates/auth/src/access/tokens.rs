//! Splits a line of a rule file into fields: blanks between fields, commas within a field, `"` around literal
//! text, and a comment from `#` to the end.

use crate::limits::{ACCESS_FIELDS_MAX, ACCESS_WORD_LEN_MAX};

/// One word of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// `true` if the word was quoted: then it is no keyword, and `@` has no meaning.
    pub(super) quoted: bool,
}

impl Word {
    /// Returns whether this is the keyword, and not a name that is spelled like it.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.quoted && self.text == keyword
    }
}

/// The words of a field, which have commas between them.
pub(super) type Field = Vec<Word>;

/// Returns the options of a text, `name=value` each, with blanks or commas between them. A comma within a
/// value, as in the names of a directory, belongs to the value: it separates options only next to a blank and
/// before another LDAP option.
pub(crate) fn options(text: &str) -> Result<Vec<String>, &'static str> {
    let separates = |letter: char| letter.is_ascii_whitespace() || letter == ',';
    let mut options = Vec::new();
    let mut rest = text.trim_start_matches(separates);
    while !rest.is_empty() {
        let (option, behind) = word_until(rest, |letter, behind| {
            letter.is_ascii_whitespace() || letter == ',' && begins_option(behind)
        })?;
        options.push(option.text);
        rest = behind.trim_start_matches(separates);
    }
    Ok(options)
}

/// Returns whether the text after a comma begins an option, so that the comma is not part of a value.
fn begins_option(text: &str) -> bool {
    let name = text.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric());
    text.is_empty()
        || text.starts_with(|letter: char| letter.is_ascii_whitespace() || letter == ',')
        || text.starts_with("ldap") && name.starts_with('=')
}

/// Returns the part of a line after its first `count` fields, unchanged.
pub(super) fn behind(line: &str, count: usize) -> &str {
    let found = with_ends(line).ok().and_then(|fields| Some(fields.get(count.checked_sub(1)?)?.1));
    found.and_then(|end| line.get(end..)).unwrap_or_default().trim()
}

/// Returns the fields of a line; none for a blank line or a comment. The error describes the fault.
pub(super) fn fields(line: &str) -> Result<Vec<Field>, &'static str> {
    with_ends(line).map(|fields| fields.into_iter().map(|(field, _)| field).collect())
}

/// Returns the fields, each with its end in the line.
fn with_ends(line: &str) -> Result<Vec<(Field, usize)>, &'static str> {
    let mut fields: Vec<(Field, usize)> = Vec::new();
    let mut rest = line.trim_start();
    let mut joined = false;
    while !rest.is_empty() && !rest.starts_with('#') {
        if let Some(behind) = rest.strip_prefix(',') {
            joined = !fields.is_empty();
            rest = behind.trim_start();
            continue;
        }
        let (word, behind) = word(rest)?;
        if word.text.len() > ACCESS_WORD_LEN_MAX {
            return Err("a word is too long");
        }
        let end = line.len() - behind.len();
        match fields.last_mut() {
            Some(field) if joined => {
                field.0.push(word);
                field.1 = end;
            }
            _ => fields.push((vec![word], end)),
        }
        if fields.len() > ACCESS_FIELDS_MAX {
            return Err("too many fields");
        }
        joined = false;
        rest = behind.trim_start();
    }
    Ok(fields)
}

/// Takes a word from the front of `text`. Quotes may stand anywhere in it, and a doubled quote means one, as
/// in PostgreSQL's `next_token`.
fn word(text: &str) -> Result<(Word, &str), &'static str> {
    word_until(text, |letter, _| matches!(letter, ',' | '#') || letter.is_ascii_whitespace())
}

/// Takes a word that ends where `ends` returns `true`. `ends` gets a character outside of quotes and the text
/// after it.
fn word_until(text: &str, ends: impl Fn(char, &str) -> bool) -> Result<(Word, &str), &'static str> {
    let mut word = Word { text: String::new(), quoted: false };
    let mut inside = false;
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' if inside && letters.peek().is_some_and(|(_, next)| *next == '"') => {
                letters.next();
                word.text.push('"');
            }
            '"' => {
                inside = !inside;
                word.quoted = true;
            }
            _ if !inside && ends(letter, &text[at + letter.len_utf8()..]) => return Ok((word, &text[at..])),
            _ => word.text.push(letter),
        }
    }
    if inside { Err("a quote is not closed") } else { Ok((word, "")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(line: &str) -> Vec<Vec<String>> {
        let shown = |word: Word| if word.quoted { format!("'{}'", word.text) } else { word.text };
        fields(line).expect("well formed").into_iter().map(|f| f.into_iter().map(shown).collect()).collect()
    }

    #[test]
    fn blanks_commas_quotes_and_comments() {
        assert_eq!(texts("  host\tall a,b  # c"), [vec!["host"], vec!["all"], vec!["a", "b"]]);
        assert_eq!(texts("a, b ,c d"), [vec!["a", "b", "c"], vec!["d"]]);
        assert_eq!(texts("\"a b\" \"all\" x\"y \"\"z\"#"), [["'a b'"], ["'all'"], ["'xy \"z'"]]);
        assert_eq!(texts("# nothing"), Vec::<Vec<String>>::new());
        assert_eq!(texts(""), Vec::<Vec<String>>::new());
        assert!(fields("a \"b").is_err());
        assert!(fields(&"x".repeat(ACCESS_WORD_LEN_MAX + 1)).is_err());
        assert!(fields(&"x ".repeat(ACCESS_FIELDS_MAX + 1)).is_err());
    }

    #[test]
    fn commas_between_options() {
        let dn = "ldapbasedn=dc=x,dc=y";
        for text in [
            "a=1 ldapbasedn=\"dc=x,dc=y\" ldapport=2",
            "a=1 ldapbasedn=\"dc=x,dc=y\" ,ldapport=2",
            "a=1, ldapbasedn=\"dc=x,dc=y\",ldapport=2,",
            " , a=1 , ldapbasedn=dc=x,dc=y , ldapport=2",
            "a=1,ldapbasedn=dc=x,dc=y,,ldapport=2 ,",
        ] {
            assert_eq!(options(text), Ok(["a=1", dn, "ldapport=2"].map(str::to_owned).to_vec()), "{text}");
        }
        assert_eq!(options("p=a,b ldapx"), Ok(vec!["p=a,b".to_owned(), "ldapx".to_owned()]));
        assert_eq!(options(" , "), Ok(Vec::new()));
        assert!(options("a=\"x").is_err());
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in "[\"#, a@\\t\\PC]{0,80}") {
            if let Ok(fields) = fields(&line) {
                prop_assert!(fields.iter().all(|field| !field.is_empty()));
            }
        }
    }
}
