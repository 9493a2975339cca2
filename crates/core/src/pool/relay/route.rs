//! The kinds of messages that clients send: for each, how it reaches a server. Functions of a message's bytes alone.

use pgweir_settings::Main;
use pgweir_sql::Traits;
use pgweir_wire::frontend::{BindHead, Execute, Target, tag};
use pgweir_wire::{HEADER_LEN, Header, Messages, split_text, until_nul};

use crate::context::Env;
use crate::errors::Fault;
use crate::limits::{NAMES_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use crate::pool::relay::ledger::Kind;

/// How to treat a message of a linked client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route<'a> {
    /// As it is; with the answer that the server will owe for it.
    Pass(Option<Kind>),
    /// A Bind that names a prepared statement: servers know it by another name.
    Bind(BindHead<'a>),
    /// Another message that does.
    Prepared,
    /// As it is, once the unnamed statement that it uses or closes is certainly its client's own.
    Unnamed(Kind),
    /// The rest of it is needed to tell.
    More,
    /// Terminate.
    Leave,
    /// Nowhere: it ends its client.
    Refused(Flaw),
}

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// Names that do not end.
    Endless,
    /// Not of the form that its type has.
    Malformed,
    /// No message of the protocol.
    Unknown,
}

/// `max_packet_size`.
pub(crate) fn oversized(main: &Main, header: Header) -> Option<Fault> {
    let too_large = header.total() > main.max_packet_size as usize;
    too_large.then(|| Fault::TooLarge("message is larger than max_packet_size".into()))
}

/// The route of a message; decided by its type byte and, for those that name statements, its first bytes.
///
/// A message that PostgreSQL would refuse without an answer that is accounted for never reaches it: a Flush or Sync with
/// content, and the end of a COPY that is longer than it reads (`PQ_SMALL_MESSAGE_LIMIT`). It would harm the server's next
/// client.
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

/// The text of a Query or a Parse, as far as it is there, and what its tokens tell of it.
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

/// The target of a Describe or Close, by its first byte.
fn target(body: &[u8]) -> Option<Target> {
    match body.first() {
        Some(b'S') => Some(Target::Statement),
        Some(b'P') => Some(Target::Portal),
        _ => None,
    }
}

/// The unnamed portal is used before these messages make one.
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
