//! Connection URLs: `postgres://user:password@host:port/database`.

use std::path::PathBuf;

use pgweir_auth::{Credential, PlainPassword};

use crate::login::{Address, Login};

const DEFAULT_PORT: u16 = 5432;

/// Why a text is no URL that can be used. It never holds the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

/// Reads a URL as libpq does, without further parameters; a host that begins with a slash (`%2F`) is a unix socket's directory.
/// The user's password may also come from PGPASSWORD.
///
/// # Errors
/// It is no such URL.
pub fn parse(url: &str, application_name: &str) -> Result<Login, UrlError> {
    let wrong = |why: &str| UrlError(format!("{why}: a URL is postgres://user:password@host:port/database"));
    let rest = url
        .strip_prefix("postgres://")
        .or_else(|| url.strip_prefix("postgresql://"))
        .ok_or_else(|| wrong("it begins with postgres://"))?;
    if rest.contains('?') {
        return Err(wrong("parameters behind ? are not taken"));
    }
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (account, place) = authority.rsplit_once('@').ok_or_else(|| wrong("the user is missing"))?;
    let (user, password) = account.split_once(':').map_or((account, None), |(user, word)| (user, Some(word)));
    let user = decode(user).filter(|user| !user.is_empty()).ok_or_else(|| wrong("the user is missing"))?;
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, port.parse().map_err(|_| wrong("the port is no number"))?)
        }
        _ => (place, DEFAULT_PORT),
    };
    let host = decode(host.trim_start_matches('[').trim_end_matches(']')).ok_or_else(|| wrong("the host"))?;
    let address = match host.as_str() {
        "" => Address::Loopback(port),
        directory if directory.starts_with('/') => Address::Unix(PathBuf::from(directory), port),
        _ => Address::Tcp(host, port),
    };
    let database = decode(database).ok_or_else(|| wrong("the database"))?;
    let password = match password {
        Some(word) => Some(decode(word).ok_or_else(|| wrong("the password"))?),
        None => std::env::var("PGPASSWORD").ok(),
    };
    let database = if database.is_empty() { &user } else { &database };
    let credential = password.map_or(Credential::None, |word| Credential::Password(PlainPassword::new(word)));
    Ok(Login { credential, ..Login::trusted(address, &user, database, application_name) })
}

/// Undoes `%2F`; `None` if that is not UTF-8 or not whole.
fn decode(text: &str) -> Option<String> {
    let (mut out, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let login = parse("postgres://me:p%40ss@db.example:6432/app", "x").expect("good");
        assert_eq!((login.user.as_str(), login.database.as_str()), ("me", "app"));
        assert_eq!(login.address, Address::Tcp("db.example".to_owned(), 6432));
        assert!(matches!(login.credential, Credential::Password(word) if word.as_bytes() == b"p@ss"));
        let login = parse("postgresql://me:x@%2Ftmp", "x").expect("good");
        assert_eq!((login.address, login.database.as_str()), (Address::Unix("/tmp".into(), 5432), "me"));
        let login = parse("postgres://me:x@[::1]:5433/d", "x").expect("good");
        assert_eq!(login.address, Address::Tcp("::1".to_owned(), 5433));
    }

    #[test]
    fn wrong_urls_are_refused_and_passwords_not_repeated() {
        for url in
            ["http://x", "postgres://host/db", "postgres://u:secret@h:port/d", "postgres://u:secret@h/d?x=y"]
        {
            let error = parse(url, "x").expect_err("not good");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
