//! Messages of the protocol. What a parser accepts must be, byte for byte, what the encoder makes of it.

use pgweir_wire::Header;
use pgweir_wire::backend::{self, Authentication, BackendKeyData, DataRow, ErrorFields, Negotiate};
use pgweir_wire::backend::{NotificationResponse, ParameterStatus};
use pgweir_wire::frontend::{self, BindHead, Close, Describe, Execute, Parse, Password, Query, SaslInitial};
use pgweir_wire::replication::{CHANGE_BYTES_MAX, Change, Frame, Relation, Rows};
use pgweir_wire::startup::{Initial, parse_options, peek_initial};

/// The input is what a client sends after its startup packet.
pub fn wire_frontend(data: &[u8]) {
    each_message(data, |header, body, message| match header.tag {
        frontend::tag::QUERY => {
            let query = Query::parse(body);
            same(message, query, |out, query| frontend::encode_query(out, query.text));
        }
        frontend::tag::PARSE => {
            let parse = Parse::parse(body);
            same(message, parse, |out, p| frontend::encode_parse(out, p.name, p.query, p.param_types));
        }
        frontend::tag::BIND => {
            let head = BindHead::parse_prefix(body).ok_or(());
            same(message, head, |out, head| {
                let tail = &body[head.tail..];
                frontend::encode_bind_head(out, head.portal, head.statement, tail.len());
                out.extend_from_slice(tail);
            });
        }
        frontend::tag::DESCRIBE => {
            let describe = Describe::parse(body);
            same(message, describe, |out, d| frontend::encode_describe(out, d.target, d.name));
        }
        frontend::tag::CLOSE => {
            same(message, Close::parse(body), |out, c| frontend::encode_close(out, c.target, c.name));
        }
        frontend::tag::EXECUTE => {
            let execute = Execute::parse(body);
            same(message, execute, |out, e| frontend::encode_execute(out, e.portal, e.max_rows));
        }
        frontend::tag::PASSWORD => {
            let password = Password::parse(body);
            same(message, password, |out, password| frontend::encode_password(out, password.text));
            if let Ok(SaslInitial { mechanism, data: Some(data) }) = SaslInitial::parse(body) {
                let initial = Ok::<_, ()>((mechanism, data));
                same(message, initial, |out, (name, data)| frontend::encode_sasl_initial(out, name, data));
            }
        }
        _ => {}
    });
}

/// The input is what a server sends in a replication stream.
pub fn wire_replication(data: &[u8]) {
    let mut is_streamed = false;
    each_message(data, |header, body, _| {
        if header.tag != backend::tag::COPY_DATA {
            return;
        }
        let Ok(Frame::Data(message)) = Frame::parse(body) else { return };
        let change = Change::parse(message, is_streamed);
        if message.first().is_some_and(|tag| Change::may_be_long(*tag)) {
            let beginning = &message[..message.len().min(CHANGE_BYTES_MAX)];
            let table = |change: &Change<'_>| match change {
                Change::Row { xid, table, .. } | Change::Relation { xid, table, .. } => Some((*xid, *table)),
                _ => None,
            };
            let found = Change::parse(beginning, is_streamed);
            assert_eq!(found.as_ref().map(table), change.as_ref().map(table));
        }
        match change {
            Ok(Change::StreamStart { .. }) => is_streamed = true,
            Ok(Change::StreamStop) => is_streamed = false,
            Ok(Change::Truncate { tables, .. }) => assert!(tables.len() <= message.len() / 4),
            Ok(Change::Row { tag, rest, .. }) => {
                let rows = Rows::parse(tag, rest).ok();
                let tuples = rows.into_iter().flat_map(|rows| rows.old.into_iter().chain(rows.new));
                tuples.for_each(|tuple| assert_eq!(tuple.values().count(), usize::from(tuple.len())));
            }
            Ok(Change::Relation { rest, .. }) => {
                let columns = Relation::parse(rest).map_or(0, |relation| relation.columns().count());
                assert!(columns <= rest.len());
            }
            _ => {}
        }
    });
}

/// The input is what a server sends.
pub fn wire_backend(data: &[u8]) {
    each_message(data, |header, body, message| match header.tag {
        backend::tag::AUTHENTICATION => authentication(message, body),
        backend::tag::READY => {
            same(message, backend::parse_ready(body), backend::encode_ready);
        }
        backend::tag::PARAMETER_STATUS => {
            let status = ParameterStatus::parse(body);
            same(message, status, |out, s| backend::encode_parameter_status(out, s.name, s.value));
        }
        backend::tag::BACKEND_KEY_DATA => {
            let key = BackendKeyData::parse(body);
            same(message, key, |out, key| backend::encode_backend_key_data(out, key.pid, key.key));
        }
        backend::tag::NEGOTIATE => {
            if let Ok(negotiate) = Negotiate::parse(body) {
                assert!(negotiate.minor <= 0xffff && negotiate.unsupported.len() <= body.len());
            }
        }
        backend::tag::NOTIFICATION => {
            let notification = NotificationResponse::parse(body);
            same(message, notification, |out, n| {
                backend::encode_notification(out, n.pid, n.channel, n.payload);
            });
        }
        backend::tag::DATA_ROW => {
            same(
                message,
                DataRow::parse(body).ok().filter(|row| row.len() < 0x8000).ok_or(()),
                |out, row| {
                    let values: Vec<_> = row.columns().collect();
                    assert_eq!(values.len(), row.len());
                    backend::encode_data_row(out, &values);
                },
            );
        }
        backend::tag::COMMAND_COMPLETE => {
            let tag =
                backend::parse_command_complete(body).ok().and_then(|tag| std::str::from_utf8(tag).ok());
            same(message, tag.ok_or(()), backend::encode_command_complete);
        }
        backend::tag::ERROR | backend::tag::NOTICE => {
            if let Ok(fields) = ErrorFields::parse(body) {
                let len: usize = fields.fields().map(|(_, value)| value.len() + 2).sum();
                assert_eq!(len + 1, body.len(), "every byte belongs to a field");
                assert!(!format!("{fields:?}").is_empty());
            }
        }
        _ => {}
    });
}

fn authentication(message: &[u8], body: &[u8]) {
    same(message, Authentication::parse(body), |out, authentication| match authentication {
        Authentication::Ok => backend::encode_auth_ok(out),
        Authentication::Cleartext => backend::encode_auth_cleartext(out),
        Authentication::Md5 { salt } => backend::encode_auth_md5(out, salt),
        Authentication::SaslContinue(data) => backend::encode_auth_sasl_continue(out, data),
        Authentication::SaslFinal(data) => backend::encode_auth_sasl_final(out, data),
        // Names that are not UTF-8 cannot be offered by us, and of an unsupported method only the code is kept.
        Authentication::Sasl { .. } | Authentication::Unsupported(_) => out.extend_from_slice(message),
    });
}

/// The input is what a client sends first; it is also tried as the `options` in a startup packet.
pub fn wire_startup(data: &[u8]) {
    if let Ok(Some((initial, used))) = peek_initial(data) {
        assert!(used <= data.len());
        let packet = &data[..used];
        for len in 0..used {
            assert_eq!(peek_initial(&packet[..len]), Ok(None), "a part of a packet is no packet");
        }
        let again = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            encode(&mut out);
            assert_eq!(out, packet);
        };
        match initial {
            Initial::Ssl => again(&frontend::encode_ssl_request),
            Initial::Gss => again(&frontend::encode_gss_request),
            Initial::Cancel { pid, key } => again(&|out| frontend::encode_cancel(out, pid, key)),
            Initial::Startup(startup) => {
                let params: Vec<_> = startup.params().collect();
                again(&|out| frontend::encode_startup(out, (startup.major, startup.minor), &params));
                if let Some(options) = startup.param(b"options") {
                    settings(options);
                }
            }
            Initial::OldProtocol | Initial::DirectTls => {}
        }
    }
    settings(data);
}

fn settings(raw: &[u8]) {
    if let Ok(settings) = parse_options(raw) {
        let len: usize = settings.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(len <= raw.len());
        assert!(settings.iter().all(|(name, _)| !name.is_empty() && !name.contains(&b'-')));
    }
}

/// Calls `check` with the header, body and whole of each message that `data` begins with.
fn each_message(mut data: &[u8], mut check: impl FnMut(Header, &[u8], &[u8])) {
    while let Ok(Some(header)) = Header::peek(data)
        && let Some((message, rest)) = data.split_at_checked(header.total())
    {
        check(header, &message[pgweir_wire::HEADER_LEN..], message);
        data = rest;
    }
}

/// Asserts that what was parsed is encoded to the same message.
fn same<T, E>(message: &[u8], parsed: Result<T, E>, encode: impl FnOnce(&mut Vec<u8>, T)) {
    if let Ok(parsed) = parsed {
        let mut out = Vec::new();
        encode(&mut out, parsed);
        assert_eq!(out, message);
    }
}
