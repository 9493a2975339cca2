//! The kinds of messages that clients send: for each, how it reaches a server. Functions of a message's bytes alone.

use pgweir_settings::Main;
use pgweir_sql::Traits;
use pgweir_wire::frontend::{BindHead, Execute, Target, tag};
use pgweir_wire::{HEADER_LEN, Header, Messages, split_text, until_nul};

use crate::context::Env;
use crate::errors::Fault;
use crate::limits::{NAMES_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use crate::pool::relay::ledger::Kind;

/// The way in which a message of a linked client reaches a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route<'a> {
    /// The message is sent unchanged. The kind is the answer that the server will owe for it, if any.
    Pass(Option<Kind>),
    /// A Bind that names a prepared statement. Servers know the statement by another name.
    Bind(BindHead<'a>),
    /// Another message that names a prepared statement.
    Prepared,
    /// The message is sent unchanged after the unnamed statement that it uses or closes is certainly its client's own.
    Unnamed(Kind),
    /// The route is not known yet: more of the message is needed.
    More,
    /// Terminate: the client leaves.
    Leave,
    /// The message is not sent, and ends its client.
    Refused(Flaw),
}

/// The flaw of a message that cannot be sent to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// The names in the message do not end.
    Endless,
    /// The message does not have the form of its type.
    Malformed,
    /// The type is not that of a message of the protocol.
    Unknown,
}

impl Flaw {
    /// Returns the error for a message of this type; `None` if its type is unknown.
    pub(crate) fn fault(self, tag: u8) -> Option<Fault> {
        match self {
            Flaw::Endless => Some(Fault::TooLarge("portal and statement names are too long".into())),
            Flaw::Malformed => {
                Some(Fault::Protocol(format!("invalid message format: '{}'", tag.escape_ascii()).into()))
            }
            Flaw::Unknown => None,
        }
    }
}

/// Returns the error for a message that is larger than `max_packet_size`.
pub(crate) fn oversized(main: &Main, header: Header) -> Option<Fault> {
    let too_large = header.total() > main.max_packet_size as usize;
    too_large.then(|| Fault::TooLarge("message is larger than max_packet_size".into()))
}

/// Returns the route of a message. The type byte decides it and, for messages that name statements, the first bytes.
///
/// Some messages never reach PostgreSQL, because it would refuse them without an answer that is accounted for, which would harm the
/// server's next client: a Flush or Sync with content, and the end of a COPY that is longer than PostgreSQL reads
/// (`PQ_SMALL_MESSAGE_LIMIT`).
#[inline(always)]
pub(crate) fn route(header: Header, message: &[u8], tracking: bool) -> Route<'_> {
    let body = &message[HEADER_LEN..message.len().min(header.total())];
    let incomplete = body.len() < header.body_len as usize;
    match header.tag {
        tag::QUERY => Route::Pass(Some(Kind::Query)),
        tag::FLUSH | tag::SYNC if header.body_len != 0 => Route::Refused(Flaw::Malformed),
        tag::COPY_DONE | tag::COPY_FAIL if header.body_len as usize > SMALL_BODY_BYTES_MAX => {
            Route::Refused(Flaw::Malformed)
        }
        tag::EXECUTE => Route::Pass(Some(Kind::Execute)),
        tag::SYNC => Route::Pass(Some(Kind::Sync)),
        tag::BIND => match BindHead::parse_prefix(body) {
            Some(head) if head.statement.is_empty() => Route::Unnamed(Kind::Bind),
            Some(head) if tracking => Route::Bind(head),
            Some(_) => Route::Pass(Some(Kind::Bind)),
            None if body.len() > NAMES_BYTES_MAX => Route::Refused(Flaw::Endless),
            None if incomplete => Route::More,
            None => Route::Refused(Flaw::Malformed),
        },
        tag::PARSE => match body.first() {
            Some(&first) if tracking && first != 0 => Route::Prepared,
            Some(_) => Route::Pass(Some(Kind::Parse)),
            None if incomplete => Route::More,
            None => Route::Refused(Flaw::Malformed),
        },
        tag::DESCRIBE | tag::CLOSE if header.total() > NAMES_BYTES_MAX => Route::Refused(Flaw::Endless),
        tag::DESCRIBE | tag::CLOSE if incomplete && body.len() < 2 => Route::More,
        tag::DESCRIBE | tag::CLOSE => match (body, target(body)) {
            ([_, first, ..], Some(Target::Statement)) if tracking && *first != 0 => Route::Prepared,
            ([_, first, ..], Some(Target::Statement)) if *first == 0 => {
                Route::Unnamed(if header.tag == tag::CLOSE { Kind::Close } else { Kind::DescribeStatement })
            }
            (_, Some(target)) => Route::Pass(Some(match (header.tag, target) {
                (tag::CLOSE, _) => Kind::Close,
                (_, Target::Statement) => Kind::DescribeStatement,
                (_, Target::Portal) => Kind::DescribePortal,
            })),
            (_, None) => Route::Refused(Flaw::Malformed),
        },
        tag::FLUSH | tag::COPY_DATA => Route::Pass(None),
        tag::COPY_DONE | tag::COPY_FAIL => Route::Pass(Some(Kind::CopyEnd)),
        tag::FUNCTION_CALL => Route::Pass(Some(Kind::FunctionCall)),
        tag::TERMINATE => Route::Leave,
        _ => Route::Refused(Flaw::Unknown),
    }
}

/// Returns the text of a Query or a Parse, as far as it is there, and the traits that its tokens show.
#[inline]
pub(crate) fn text_of<'a>(env: &mut Env, header: Header, message: &'a [u8]) -> Option<(&'a [u8], Traits)> {
    let body = &message[HEADER_LEN..message.len().min(header.total())];
    let text = match header.tag {
        tag::QUERY => until_nul(body),
        tag::PARSE => until_nul(split_text(body).map_or(&[], |(_, query)| query)),
        _ => return None,
    };
    Some((text, env.texts.traits(text)))
}

/// Returns the target of a Describe or Close, by its first byte.
fn target(body: &[u8]) -> Option<Target> {
    match body.first() {
        Some(b'S') => Some(Target::Statement),
        Some(b'P') => Some(Target::Portal),
        _ => None,
    }
}

/// Whether these messages use the unnamed portal before they make one.
pub(crate) fn uses_earlier_portal(bytes: &[u8]) -> bool {
    for message in Messages::of(bytes).whole() {
        let body = message.body();
        match message.tag() {
            tag::EXECUTE => return Execute::parse(body).is_ok_and(|execute| execute.portal.is_empty()),
            tag::DESCRIBE if body == b"P\0" => return true,
            tag::PARSE | tag::DESCRIBE | tag::CLOSE | tag::FLUSH => {}
            _ => return false,
        }
    }
    false
}
