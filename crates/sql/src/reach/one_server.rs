//! Finds what a text would do differently at a standby than at its primary, without an error from PostgreSQL.
//!
//! A transaction that reads at a standby must not do there what only has its effect at the primary: take
//! locks and snapshots that other sessions are to see, ask for values of sequences, show or change a server's
//! own state. The words of the text decide, wherever they occur. Statements that PostgreSQL itself refuses in
//! a read-only transaction are not this file's concern.

use super::{NAME_BYTES_MAX, is_in, name_hash};
use crate::lexer::{Doubt, Kind, Lexer};

/// The result of [`at_standby`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtStandby<'a> {
    /// The word that a standby would handle differently; `None` if there is none. Empty if the text cannot be
    /// read.
    pub differs: Option<&'a [u8]>,
    /// `true` if the text may end the transaction that it runs in.
    pub may_end: bool,
}

/// Prefixes of the names of PostgreSQL's own functions and views that act on one server or show its state.
#[rustfmt::skip]
const BEGINNINGS: &[&str] = &[
    "inet_server_", "pg_advisory_", "pg_backend_memory", "pg_backup_", "pg_blocking_", "pg_buffercache", "pg_cancel_",
    "pg_control_", "pg_copy_", "pg_create_", "pg_current_", "pg_drop_", "pg_export_", "pg_file_", "pg_get_wal_",
    "pg_hba_", "pg_ident_", "pg_import_", "pg_is_in_", "pg_is_wal_", "pg_last_", "pg_lock", "pg_log_", "pg_logical_",
    "pg_ls_", "pg_postmaster_", "pg_prepared_xact", "pg_prewarm", "pg_promote", "pg_read_", "pg_reload_",
    "pg_replication_", "pg_rotate_", "pg_safe_", "pg_sequence_last", "pg_sequences", "pg_settings", "pg_shmem_",
    "pg_start_", "pg_stat_", "pg_statio_", "pg_stop_", "pg_switch_", "pg_sync_", "pg_terminate_", "pg_try_advisory_",
    "pg_wal_", "pg_walfile_",
];

/// Columns of sequences. `last_value` is the name of a window function, too.
const OF_SEQUENCES: [&str; 3] = ["is_called", "last_value", "log_cnt"];

/// Reads a text of a transaction that reads at a standby. The caller's `is_other` gets the [`name_hash`] of
/// each name and returns whether the name stands for something that a standby handles differently.
///
/// Takes time linear in the length of `sql` and allocates nothing.
#[must_use]
pub fn at_standby(sql: &[u8], mut is_other: impl FnMut(u64) -> bool) -> AtStandby<'_> {
    let mut scan = Scan::default();
    for lexeme in Lexer::new(sql) {
        let lexeme = match lexeme {
            Ok(lexeme) => lexeme,
            // PostgreSQL reports an error for the text, and runs nothing.
            Err(Doubt::Unterminated) => return AtStandby { differs: None, may_end: scan.may_end },
            // A server may read the rest of the text differently than this lexer, so it could do anything.
            Err(_) => return AtStandby { differs: Some(b""), may_end: true },
        };
        let is_called = lexeme.kind == Kind::Symbol && lexeme.text == b"(";
        if let Some(word) = scan.word.take()
            && !is_called
            && is_in(&OF_SEQUENCES, lower(word, &mut [0; NAME_BYTES_MAX]))
        {
            return scan.stops_at(word);
        }
        let differs = match lexeme.kind {
            Kind::Word => scan.word(lexeme.text, &mut is_other),
            Kind::QuotedWord => scan.quoted_word(lexeme.text, &mut is_other),
            Kind::UnicodeWord => Some(lexeme.text),
            Kind::Symbol if lexeme.text == b";" => scan.statement_ends(),
            _ => {
                scan.before = Before::Other;
                None
            }
        };
        if let Some(part) = differs {
            return scan.stops_at(part);
        }
    }
    let of_sequence = scan.word.filter(|word| is_in(&OF_SEQUENCES, lower(word, &mut [0; NAME_BYTES_MAX])));
    let differs = of_sequence.or(scan.statement_ends());
    AtStandby { differs, may_end: scan.may_end }
}

/// The word before the current one, if it can change the meaning of the current one.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Before {
    #[default]
    Start,
    With,
    Transaction,
    Other,
}

/// The kind of the statement that is being read.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Statement {
    #[default]
    Other,
    /// A COPY. Until STDIN or STDOUT is seen, it may read or write a file of the server.
    Copy,
    Declare,
    Set,
    /// A statement that ends the transaction.
    End,
}

#[derive(Default)]
struct Scan<'a> {
    before: Before,
    statement: Statement,
    /// The statement's first word.
    first: &'a [u8],
    /// The last word, which is a function's name if a parenthesis follows.
    word: Option<&'a [u8]>,
    /// The statement that has ended the transaction: a later statement would run outside of it.
    ended: Option<&'a [u8]>,
    may_end: bool,
}

impl<'a> Scan<'a> {
    fn stops_at(&self, part: &'a [u8]) -> AtStandby<'a> {
        AtStandby { differs: Some(part), may_end: self.may_end }
    }

    fn word(&mut self, text: &'a [u8], is_other: &mut impl FnMut(u64) -> bool) -> Option<&'a [u8]> {
        if text.len() > NAME_BYTES_MAX {
            return Some(text);
        }
        let mut buffer = [0; NAME_BYTES_MAX];
        let name = lower(text, &mut buffer);
        let differs = match self.before {
            Before::Start => self.begins(name, text),
            _ => {
                match (self.statement, name) {
                    // COPY FROM STDIN needs no check here: PostgreSQL refuses it in a read-only transaction.
                    (Statement::Copy, b"stdout" | b"stdin") => self.statement = Statement::Other,
                    // ROLLBACK TO a savepoint does not end the transaction.
                    (Statement::End, b"to") => self.statement = Statement::Other,
                    _ => {}
                }
                let holds = self.statement == Statement::Declare && self.before == Before::With;
                let imports = self.statement == Statement::Set && self.before == Before::Transaction;
                holds && name == b"hold" || imports && name == b"snapshot"
            }
        };
        self.before = match name {
            b"with" => Before::With,
            b"transaction" => Before::Transaction,
            _ => Before::Other,
        };
        self.word = Some(text);
        (differs || is_of_one_server(name) || is_other(name_hash(name))).then_some(text)
    }

    /// Notes the first word of a statement. Returns `true` if the statement must not run at a standby.
    fn begins(&mut self, name: &[u8], text: &'a [u8]) -> bool {
        self.first = text;
        self.statement = match name {
            b"copy" => Statement::Copy,
            b"declare" => Statement::Declare,
            b"set" => Statement::Set,
            b"commit" | b"end" | b"rollback" | b"abort" => Statement::End,
            _ => Statement::Other,
        };
        self.may_end |= self.statement == Statement::End;
        self.ended.is_some() || matches!(name, b"do" | b"lock" | b"load" | b"checkpoint")
    }

    fn quoted_word(&mut self, text: &'a [u8], is_other: &mut impl FnMut(u64) -> bool) -> Option<&'a [u8]> {
        self.before = Before::Other;
        let odd = |byte: &u8| *byte == b'"';
        let differs = text.len() > NAME_BYTES_MAX || text.iter().any(odd) || is_of_one_server(text);
        self.word = Some(text);
        (differs || is_other(name_hash(text))).then_some(text)
    }

    fn statement_ends(&mut self) -> Option<&'a [u8]> {
        self.before = Before::Start;
        match std::mem::take(&mut self.statement) {
            Statement::Copy => Some(self.first),
            Statement::End => {
                self.ended = Some(self.first);
                None
            }
            _ => None,
        }
    }
}

fn lower<'b>(text: &[u8], buffer: &'b mut [u8; NAME_BYTES_MAX]) -> &'b [u8] {
    let Some(name) = buffer.get_mut(..text.len()) else { return b"" };
    name.copy_from_slice(text);
    name.make_ascii_lowercase();
    name
}

/// Returns whether this is a function or view of PostgreSQL's own that acts on one server or shows its state.
fn is_of_one_server(name: &[u8]) -> bool {
    let begins = || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning.as_bytes()));
    matches!(name.first(), Some(b'p' | b'i' | b't')) && (name == b"txid_current" || begins())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs(sql: &str) -> Option<String> {
        let found = at_standby(sql.as_bytes(), |hash| hash == name_hash(b"a_seq"));
        found.differs.map(|part| String::from_utf8_lossy(part).into_owned())
    }

    #[test]
    fn what_reads_or_is_refused_by_postgresql_passes() {
        for sql in [
            "select a, count(*) from t group by a",
            "select relname from pg_class where pg_table_is_visible(oid)",
            "select last_value(a) over (order by b) from t",
            "insert into t values (1)",
            "notify x",
            "declare c cursor for select 1",
            "declare c cursor without hold for select 1",
            "fetch 10 from c",
            "set local work_mem = '1MB'",
            "copy t to stdout",
            "copy t from stdin",
            "show work_mem",
            "select 1; select 2",
            "select 1; commit",
            "rollback to a; select 1",
            "select 'pg_advisory_lock(1)'",
            "select 'open",
            "",
        ] {
            assert_eq!(differs(sql), None, "{sql}");
        }
    }

    #[test]
    fn what_a_standby_does_otherwise_is_found() {
        for (sql, part) in [
            ("select PG_Advisory_Lock(1)", "PG_Advisory_Lock"),
            ("select pg_catalog.pg_try_advisory_xact_lock_shared(1)", "pg_try_advisory_xact_lock_shared"),
            ("select \"pg_export_snapshot\"()", "pg_export_snapshot"),
            ("explain analyze select pg_terminate_backend(7)", "pg_terminate_backend"),
            ("select last_value from t_id_seq", "last_value"),
            ("select s.last_value, 1 from s", "last_value"),
            ("select is_called", "is_called"),
            ("select * from A_SEQ", "A_SEQ"),
            ("select pg_stat_reset()", "pg_stat_reset"),
            ("select txid_current()", "txid_current"),
            ("do $$begin end$$", "do"),
            ("lock table t in share mode", "lock"),
            ("copy t to '/tmp/x'", "copy"),
            ("declare c cursor with hold for select 1", "hold"),
            ("set transaction snapshot '00000003-1'", "snapshot"),
            ("commit; insert into t values (1)", "insert"),
            ("select 1; rollback; select 2", "select"),
            ("select U&\"p\\0067_advisory_lock\"(1)", "p\\0067_advisory_lock"),
            ("select 'a\\'", ""),
        ] {
            assert_eq!(differs(sql).as_deref(), Some(part), "{sql}");
        }
    }

    #[test]
    fn the_end_of_the_transaction_is_seen() {
        for (sql, may_end) in [
            ("commit", true),
            ("select 1; end", true),
            ("rollback to savepoint a", true),
            ("select case when true then 1 end", false),
            ("select 1", false),
        ] {
            assert_eq!(at_standby(sql.as_bytes(), |_| false).may_end, may_end, "{sql}");
        }
    }
}
