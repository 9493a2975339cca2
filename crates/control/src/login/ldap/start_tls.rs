//! The StartTLS operation (RFC 4511, section 4.14), with its own time limit and errors that say what to do:
//! the library waits as long for an answer as for a connection, and does not notice that the other side
//! closes it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The time that the answer may take: the server only has to say that it can.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The maximum size of an answer, which has a code and two short texts.
const ANSWER_BYTES_MAX: usize = 4096;

/// LDAPMessage 1 with an ExtendedRequest for 1.3.6.1.4.1.1466.20037.
const REQUEST: &[u8] = b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037";

const SEQUENCE: u8 = 0x30;
const EXTENDED_RESPONSE: u8 = 0x78;
const ENUMERATED: u8 = 0x0a;
/// The first byte of a TLS alert.
const TLS_ALERT: u8 = 0x15;

const IS_IT_LDAPS: &str =
    "if this port speaks TLS from the first byte, set ldapscheme=ldaps instead of ldaptls=1";

/// Connects and asks the server for TLS, which begins with the next byte.
pub(super) fn connect(host: &str, port: u16, connect_max: Duration) -> Result<TcpStream, String> {
    let mut stream = connect_to(host, port, connect_max).map_err(|error| error.to_string())?;
    let until = Instant::now() + ANSWER_MAX;
    let answered = stream.write_all(REQUEST).and_then(|()| answer(&mut stream, until));
    let answer = answered.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("no answer to StartTLS within {} s; {IS_IT_LDAPS}", ANSWER_MAX.as_secs())
        }
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!("the server closed the connection when it was asked for StartTLS; {IS_IT_LDAPS}")
        }
        _ => error.to_string(),
    })?;
    match (answer.first(), result_code(&answer)) {
        (_, Some(0)) => {}
        (_, Some(code)) => return Err(format!("the server refuses StartTLS with code {code}")),
        (Some(&TLS_ALERT), None) => {
            return Err(format!("the answer to StartTLS is a TLS alert; {IS_IT_LDAPS}"));
        }
        (_, None) => return Err(format!("the answer to StartTLS is not LDAP; {IS_IT_LDAPS}")),
    }
    stream.set_read_timeout(None).map_err(|error| error.to_string())?;
    Ok(stream)
}

fn connect_to(host: &str, port: u16, connect_max: Duration) -> io::Result<TcpStream> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (bare, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, connect_max) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// Returns the first message, or the beginning of bytes that are not LDAP.
fn answer(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 512];
    loop {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let is_ldap = answer.first() == Some(&SEQUENCE);
        if !is_ldap || element(&answer).is_some() || answer.len() > ANSWER_BYTES_MAX {
            return Ok(answer);
        }
        if Instant::now() >= until {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

/// Returns the `resultCode` of an LDAPMessage with an ExtendedResponse.
fn result_code(answer: &[u8]) -> Option<u8> {
    let (tag, message, _) = element(answer)?;
    let (_, _, behind_id) = element(message)?;
    let (kind, response, _) = element(behind_id)?;
    let (enumerated, code, _) = element(response)?;
    match code {
        [code] if (tag, kind, enumerated) == (SEQUENCE, EXTENDED_RESPONSE, ENUMERATED) => Some(*code),
        _ => None,
    }
}

/// Returns the first element's tag and content, and the bytes after it; BER with lengths of up to four bytes.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Returns the result with a server that answers so.
    fn asked_of(said: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; REQUEST.len()];
            stream.read_exact(&mut request).expect("a request");
            assert_eq!(request, REQUEST);
            stream.write_all(said).expect("an answer");
        });
        let result = connect("127.0.0.1", port, Duration::from_secs(10)).map(|_| ());
        server.join().expect("the server ends");
        result
    }

    #[test]
    fn answers_to_the_request() {
        assert_eq!(asked_of(b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\0\x04\0\x04\0"), Ok(()));
        assert_eq!(asked_of(b"\x30\x84\0\0\0\x0c\x02\x01\x01\x78\x07\x0a\x01\0\x04\0\x04\0"), Ok(()));
        let refused = asked_of(b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x35\x04\0\x04\0");
        assert_eq!(refused, Err("the server refuses StartTLS with code 53".to_owned()));
        for (said, words) in [
            (&b""[..], "closed the connection"),
            (b"\x30\x0c\x02", "closed the connection"),
            (b"\x15\x03\x03\0\x02\x02\x0a", "is a TLS alert"),
            (b"HTTP/1.1 400", "is not LDAP"),
            (b"\x30\x03\x02\x01\x01", "is not LDAP"),
            (b"\x30\x0c\x02\x01\x01\x61\x07\x0a\x01\0\x04\0\x04\0", "is not LDAP"),
        ] {
            let error = asked_of(said).expect_err("no StartTLS");
            assert!(error.contains(words) && error.ends_with(IS_IT_LDAPS), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let _ = result_code(&bytes);
        }
    }
}
