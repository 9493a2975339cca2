//! Paths of a single function.

use std::hint::black_box;

use pgweir_sql::traits;
use pgweir_wire::Header;
use pgweir_wire::frontend::{encode_bind_head, encode_execute, encode_sync};

/// pgbench's SELECT.
pub(crate) const SELECT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = 4711000;";

/// Messages in the stream that is cut.
const MESSAGES: u32 = 60;

/// Cuts `times` messages off a stream; gives the bytes seen.
pub(crate) fn framing(times: u32) -> usize {
    let mut stream = Vec::new();
    for _ in 0..MESSAGES / 3 {
        encode_bind_head(&mut stream, b"", b"statement_1", 6);
        stream.extend([0; 6]);
        encode_execute(&mut stream, b"", 0);
        encode_sync(&mut stream);
    }
    let (mut seen, mut left) = (0, times);
    while left > 0 {
        let mut at = 0;
        while let Ok(Some(header)) = Header::peek(black_box(&stream[at..])) {
            at += header.total();
            left = left.saturating_sub(1);
        }
        seen += at;
    }
    seen
}

/// Looks at a short statement.
pub(crate) fn lex_short(times: u32) -> usize {
    certain(times, SELECT.as_bytes())
}

/// Looks at a long statement with comments, quotes, casts and parameters.
pub(crate) fn lex_long(times: u32) -> usize {
    let part = "SELECT o.id, o.\"placed at\", sum(l.price * l.count)::numeric(12, 2) AS total, /* of all lines */ \
                coalesce(c.name, 'it''s nobody') FROM orders o JOIN lines l ON l.order_id = o.id LEFT JOIN \
                customers c ON c.id = o.customer_id WHERE o.state IN ('new', 'paid', $1) AND o.placed_at >= $2 \
                GROUP BY 1, 2, 4 HAVING count(*) > 3 -- not the small ones\n";
    certain(times, [part; 5].join("UNION ALL ").as_bytes())
}

fn certain(times: u32, sql: &[u8]) -> usize {
    (0..times).filter(|_| traits(black_box(sql)).certainly_self_contained).count()
}
