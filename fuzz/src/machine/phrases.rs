//! What those say who keep to the protocol.

use std::sync::LazyLock;

use pgweir_wire::frontend::{self as say, Target};

/// Commands of the console.
pub const COMMANDS: [&str; 34] = [
    "SHOW CLIENTS",
    "SHOW SERVERS",
    "SHOW POOLS",
    "SHOW DATABASES",
    "SHOW SOCKETS",
    "SHOW ACTIVE_SOCKETS",
    "SHOW STATS",
    "SHOW TOTALS",
    "SHOW LISTS",
    "SHOW MEM",
    "SHOW USERS",
    "SHOW CONFIG",
    "SHOW STATE",
    "SHOW HELP",
    "PAUSE",
    "PAUSE p",
    "PAUSE few",
    "RESUME",
    "RESUME p",
    "RESUME few",
    "SUSPEND",
    "KILL",
    "KILL p",
    "KILL_CLIENT 1",
    "KILL_CLIENT 2",
    "RECONNECT",
    "RECONNECT p",
    "WAIT_CLOSE",
    "DISABLE p",
    "ENABLE p",
    "RELOAD",
    "SET default_pool_size = 1",
    "SHUTDOWN WAIT_FOR_SERVERS",
    "SHUTDOWN WAIT_FOR_CLIENTS",
];

/// What a well-behaved client can say, each a whole group of messages.
pub static PHRASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for text in [
        "select 1",
        "begin",
        "commit",
        "",
        "copy t from stdin",
        "set application_name = 'x'",
        "fail",
        "discard all",
    ] {
        all.push(told(|out| say::encode_query(out, text.as_bytes())));
    }
    for name in ["", "a", "b"] {
        all.push(told(|out| {
            say::encode_parse(out, name.as_bytes(), format!("select '{name}'").as_bytes(), &[0, 0]);
            say::encode_describe(out, Target::Statement, name.as_bytes());
            bind(out, name);
            say::encode_execute(out, b"", 0);
            say::encode_sync(out);
        }));
        all.push(told(|out| {
            bind(out, name);
            say::encode_describe(out, Target::Portal, b"");
            say::encode_execute(out, b"", 1);
            say::encode_close(out, Target::Statement, name.as_bytes());
            say::encode_sync(out);
        }));
    }
    all.push(told(|out| {
        say::encode_parse(out, b"c", b"copy t from stdin", &[0, 0]);
        bind(out, "c");
        say::encode_execute(out, b"", 0);
        say::encode_sync(out);
    }));
    all.push(told(|out| {
        say::encode_parse(out, b"", b"select 2", &[0, 0]);
        say::encode_flush(out);
    }));
    all.push(told(say::encode_sync));
    all.push(b"d\0\0\0\x06x\n".to_vec());
    all.push(b"c\0\0\0\x04".to_vec());
    all.push(told(|out| say::encode_copy_fail(out, b"no")));
    all.push(b"F\0\0\0\x0e\0\0\0\x01\0\0\0\0\0\0".to_vec());
    all.push(told(say::encode_terminate));
    all
});

fn bind(out: &mut Vec<u8>, statement: &str) {
    const NOTHING: [u8; 6] = [0; 6];
    say::encode_bind_head(out, b"", statement.as_bytes(), NOTHING.len());
    out.extend_from_slice(&NOTHING);
}

/// A startup packet.
pub fn startup(user: &str, database: &str) -> Vec<u8> {
    let params: [(&[u8], &[u8]); 3] =
        [(b"user", user.as_bytes()), (b"database", database.as_bytes()), (b"application_name", b"fuzz")];
    told(|out| say::encode_startup(out, (3, 0), &params))
}

/// A simple query.
pub fn query(text: &str) -> Vec<u8> {
    told(|out| say::encode_query(out, text.as_bytes()))
}

fn told(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}
