//! Errors of servers to which pgweir adds a sentence for the client, because pooling has to do with them.

use pgweir_wire::backend::{ErrorFields, TxStatus};
use pgweir_wire::error::SqlState;
use pgweir_wire::header::HEADER_LEN;

use crate::errors::IN_FAILED_TRANSACTION;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::relay::ledger::{Entry, Kind};

/// The hint for the error 55000 if a client asks for a value that was drawn in an earlier transaction.
const DRAWN_BEFORE: &str = "A value that was drawn in an earlier transaction is kept for a moment only (see sequence_affinity): \
ask for it in the same transaction, or use RETURNING.";

impl Pool {
    /// Returns an ErrorResponse for this client with an explanation added, if there is one. `fatal` is true if the error is the server's
    /// last one.
    pub(crate) fn explain(&self, id: ClientId, message: &[u8], fatal: bool) -> Option<Vec<u8>> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        if fatal {
            let lost = self.lost_with_server(id)?;
            return with_field(message, b'D', &lost);
        }
        if !link.drawing.took_away() {
            return None;
        }
        let fields = ErrorFields::parse(message.get(HEADER_LEN..)?).ok()?;
        asks_for_drawn(&fields).then(|| with_field(message, b'H', DRAWN_BEFORE)).flatten()
    }

    /// Returns an ErrorResponse to a Bind or a Describe with the client's own name for the statement instead of the server's. `None` if it
    /// is another error.
    pub(crate) fn by_own_name(&self, id: ClientId, ended: Option<Entry>, message: &[u8]) -> Option<Vec<u8>> {
        let entry = ended.filter(|entry| entry.ticket != 0)?;
        if !matches!(entry.kind, Kind::Bind | Kind::DescribeStatement) {
            return None;
        }
        let code = ErrorFields::parse(message.get(HEADER_LEN..)?).ok()?.code().and_then(SqlState::from_bytes);
        if !matches!(code, Some(SqlState::PROTOCOL_VIOLATION | SqlState::INVALID_SQL_STATEMENT_NAME)) {
            return None;
        }
        let names = self.clients.get(id)?.account.statements.as_deref()?;
        with_message(message, |text| renamed(text, names.name(entry.ticket)?))
    }

    /// Returns a sentence on the state that a client that keeps its server loses with it.
    pub(crate) fn lost_with_server(&self, id: ClientId) -> Option<String> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        let reasons = link.pin.as_ref()?.reasons;
        Some(format!("Lost with the server, which this client kept: {}.", reasons.text()))
    }
}

/// Whether the error says that `currval` or `lastval` has no value to give. 55000 is the code of much else (a portal that was run already,
/// a slot that is in use), and the text may be in any language, but the error names PostgreSQL's function (sequence.c).
fn asks_for_drawn(fields: &ErrorFields<'_>) -> bool {
    let code = fields.code().and_then(SqlState::from_bytes);
    code == Some(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
        && matches!(fields.field(b'R'), Some(b"currval_oid" | b"lastval"))
}

/// Returns PostgreSQL's error for a statement that would return other columns than its client was told, made from an error that was
/// provoked and has this code. In a failed transaction PostgreSQL says so before it looks at the columns. `None` if the message has another
/// code, or another form. The severity is in the server's language.
pub(crate) fn as_changed_result(message: &[u8], provoked: SqlState, tx: TxStatus) -> Option<Vec<u8>> {
    let fields = ErrorFields::parse(message.get(HEADER_LEN..)?).ok()?;
    if fields.code() != Some(provoked.as_bytes()) {
        return None;
    }
    let (code, text, file, routine): (_, _, &[u8], &[u8]) = match tx {
        TxStatus::Failed => {
            (SqlState::IN_FAILED_SQL_TRANSACTION, IN_FAILED_TRANSACTION, b"postgres.c", b"exec_bind_message")
        }
        TxStatus::Idle | TxStatus::InTransaction => {
            let text = "cached plan must not change result type";
            (SqlState::FEATURE_NOT_SUPPORTED, text, b"plancache.c", b"RevalidateCachedQuery")
        }
    };
    let told = [
        (b'S', fields.field(b'S').unwrap_or(b"ERROR")),
        (b'V', b"ERROR"),
        (b'C', code.as_bytes()),
        (b'M', text.as_bytes()),
        (b'F', file),
        (b'R', routine),
    ];
    let mut out = vec![message[0], 0, 0, 0, 0];
    for (field, value) in told {
        out.push(field);
        out.extend_from_slice(value);
        out.push(0);
    }
    out.push(0);
    let len = u32::try_from(out.len() - 1).ok()?;
    out.get_mut(1..HEADER_LEN)?.copy_from_slice(&len.to_be_bytes());
    Some(out)
}

/// Returns an ErrorResponse with an additional field; `None` if it has that field, or is no ErrorResponse.
fn with_field(message: &[u8], field: u8, value: &str) -> Option<Vec<u8>> {
    let (head, body) = message.split_at_checked(HEADER_LEN)?;
    let fields = body.strip_suffix(b"\0")?;
    let has = fields.split(|byte| *byte == 0).any(|known| known.first() == Some(&field));
    if has || !(fields.is_empty() || fields.ends_with(b"\0")) {
        return None;
    }
    let mut told = [head, fields, &[field], value.as_bytes(), b"\0\0"].concat();
    let len = u32::try_from(told.len() - 1).ok()?;
    told.get_mut(1..HEADER_LEN)?.copy_from_slice(&len.to_be_bytes());
    Some(told)
}

/// Returns an ErrorResponse with another message field; `None` if `change` does not change that field.
fn with_message(message: &[u8], change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let (head, body) = message.split_at_checked(HEADER_LEN)?;
    let mut fields: Vec<&[u8]> = body.split(|byte| *byte == 0).collect();
    let at = fields.iter().position(|field| field.first() == Some(&b'M'))?;
    let changed = change(&fields[at][1..])?;
    let changed = [b"M", changed.as_slice()].concat();
    fields[at] = &changed;
    let mut told = [head, &fields.join(&0)].concat();
    let len = u32::try_from(told.len() - 1).ok()?;
    told.get_mut(1..HEADER_LEN)?.copy_from_slice(&len.to_be_bytes());
    Some(told)
}

/// Returns a text with this name instead of the last of pgweir's own names. Values in the text can only come before it.
fn renamed(text: &[u8], own: &[u8]) -> Option<Vec<u8>> {
    const OURS: &[u8] = b"PGWEIR_";
    let at = text.windows(OURS.len()).rposition(|part| part == OURS)?;
    let (before, name) = text.split_at(at);
    let digits = name[OURS.len()..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some([before, own, &name[OURS.len() + digits..]].concat())
}

#[cfg(test)]
mod tests {
    use pgweir_wire::error::{Report, encode_error};

    use super::*;

    #[test]
    fn a_statement_is_called_as_its_client_calls_it() {
        let mut message = Vec::new();
        let text = "bind message supplies 1 parameters, but prepared statement \"PGWEIR_157\" requires 2";
        encode_error(&mut message, &Report::error(SqlState::PROTOCOL_VIOLATION, text));
        let told = with_message(&message, |text| renamed(text, b"mine")).expect("it is named");
        let fields = ErrorFields::parse(&told[HEADER_LEN..]).expect("well formed");
        let expected = "bind message supplies 1 parameters, but prepared statement \"mine\" requires 2";
        assert_eq!(fields.message(), Some(expected.as_bytes()));
        assert_eq!(fields.code(), Some(&b"08P01"[..]));
        assert_eq!(u32::from_be_bytes([told[1], told[2], told[3], told[4]]) as usize, told.len() - 1);
        assert_eq!(with_message(b"E\0\0\0\x04", |text| renamed(text, b"mine")), None);
        assert_eq!(renamed(b"PGWEIR", b"mine"), None);
    }

    #[test]
    fn a_field_is_added_once() {
        let mut message = Vec::new();
        encode_error(&mut message, &Report::error(SqlState::ADMIN_SHUTDOWN, "bye"));
        let told = with_field(&message, b'D', "why").expect("it has none");
        let fields = ErrorFields::parse(&told[HEADER_LEN..]).expect("well formed");
        assert_eq!(fields.message(), Some(&b"bye"[..]));
        assert!(told.windows(5).any(|part| part == b"Dwhy\0"));
        assert_eq!(u32::from_be_bytes([told[1], told[2], told[3], told[4]]) as usize, told.len() - 1);
        assert_eq!(with_field(&told, b'D', "again"), None);
        assert_eq!(with_field(b"E\0", b'D', "x"), None);
        assert_eq!(with_field(b"E\0\0\0\x07Sx\0", b'D', "x"), None, "it does not end as it should");
    }
}
