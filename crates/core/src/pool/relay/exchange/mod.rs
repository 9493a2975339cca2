//! The exchange at the front of what a client has sent: what its messages are, before any of them is sent.
//!
//! An exchange is one message group and its answer. Nothing here asks or changes the pool; the files answer one question each, and
//! all of them read the messages by one iterator ([`pgweir_wire::Messages`]):
//!
//! | question | file |
//! |---|---|
//! | How long is the group, and is all of it here? | this file |
//! | Does the group stand alone, so that other clients' groups may follow it on a server? What does it read or change? | `group` |
//! | Is the group nothing but BEGIN, COMMIT or another statement about the transaction block? | `block` |
//! | What do messages do to the transaction block that they run in? | `effect` |
//! | Does the group only set something for its transaction? | `locals` |
//! | Which statement of the group is outdated, and may the group run again? | `outdated` |
//!
//! What a text does at a standby otherwise than at the primary is asked for each message of a transaction that reads there, since nothing
//! may wait within a group: `cluster/reading/later.rs`.

pub(crate) mod block;
pub(crate) mod effect;
pub(crate) mod group;
pub(crate) mod locals;
pub(crate) mod outdated;

use pgweir_wire::frontend::{BindHead, Describe, Parse, Target, tag};
use pgweir_wire::{Message, Messages};

use crate::limits::{GROUP_BYTES_MAX, GROUP_MESSAGES_MAX};

/// Returns the whole messages at the front of `bytes`, up to the largest size and number of messages of a group that pgweir looks at.
#[inline]
pub(crate) fn whole_messages(bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    Messages::of(bytes)
        .whole()
        .take(GROUP_MESSAGES_MAX)
        .take_while(|message| message.end() <= GROUP_BYTES_MAX)
}

/// Whether only the beginning of a group is at the front of `bytes`. Its client will send the rest: a server need not answer it before
/// Sync. A group that is too large for pgweir to look at does not count.
pub(crate) fn is_partial_group(bytes: &[u8]) -> bool {
    let mut messages = Messages::of(bytes);
    for _ in 0..GROUP_MESSAGES_MAX {
        let Some(message) = messages.next() else { return !messages.is_malformed() };
        let is_part = match message.tag() {
            tag::PARSE | tag::BIND | tag::DESCRIBE | tag::EXECUTE | tag::CLOSE => true,
            tag::QUERY => message.start == 0 && !message.is_whole(),
            _ => false,
        };
        if !is_part || message.end() > GROUP_BYTES_MAX {
            return false;
        }
        if !message.is_whole() {
            return true;
        }
    }
    false
}

/// The length of a client's group at the front of these bytes, or of all that is here of it. The end of a COPY's data ends one, too.
pub(crate) fn group_len(bytes: &[u8]) -> usize {
    let ends =
        |tag| matches!(tag, tag::QUERY | tag::SYNC | tag::FUNCTION_CALL | tag::COPY_DONE | tag::COPY_FAIL);
    Messages::of(bytes).find(|message| ends(message.tag())).map_or(bytes.len(), |end| end.end_here())
}

/// Returns the text of the statement that the first message is about, if all of the message is here. `named` returns the text of the
/// client's prepared statement with a name.
pub(crate) fn first_text<'a>(bytes: &'a [u8], named: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let message = Messages::of(bytes).next().filter(Message::is_whole)?;
    let body = message.body();
    match message.tag() {
        // If there is another NUL in it, it runs nowhere.
        tag::QUERY => body.strip_suffix(&[0]),
        tag::PARSE => Some(Parse::parse(body).ok()?.query),
        tag::BIND => named(BindHead::parse_prefix(body)?.statement),
        tag::DESCRIBE => {
            let describe =
                Describe::parse(body).ok().filter(|describe| describe.target == Target::Statement)?;
            named(describe.name)
        }
        _ => None,
    }
}
