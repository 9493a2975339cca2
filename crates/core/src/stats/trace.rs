//! Traces: the context in a statement's comment, and the report of a traced statement.
//!
//! The context is that of the W3C's recommendation "Trace Context" (`traceparent`), in a comment as sqlcommenter writes it:
//! `/*action='pay',traceparent='00-...-...-01'*/`. A comment is a client's claim, and decides nothing but the name of a trace.

use std::sync::Arc;

use pgweir_settings::Main;

use crate::limits::TRACE_COMMENT_BYTES_MAX;
use crate::stats::times::Split;

/// The trace to which a statement belongs, and the span that sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The `trace-id`.
    pub trace: [u8; 16],
    /// The `parent-id`.
    pub parent: [u8; 8],
}

/// A statement that was traced, once it is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedStatement {
    /// The statement's context; `None` if it came without one and begins a new trace.
    pub context: Option<TraceContext>,
    /// The time at which the statement was answered (µs since 1970).
    pub at_us: u64,
    /// The parts of the statement's time.
    pub split: Split,
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The database's host, as configured; empty for a unix socket.
    pub host: String,
    /// The port of the database's host.
    pub port: u16,
    /// The statement's text without literals; `None` if it is not known.
    pub text: Option<Box<str>>,
    /// The number of rows that were returned or changed.
    pub rows: u64,
    /// The statement failed.
    pub failed: bool,
}

/// The mark of a server's statement that is traced.
pub(crate) struct Traced {
    pub(crate) context: Option<TraceContext>,
}

/// The choice of the statements that are traced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampler {
    on: bool,
    /// One in this number of statements without a context is traced; 0: none is.
    one_in: u32,
    /// The number of statements without a context until the next one that is traced.
    left: u32,
}

impl Sampler {
    pub(crate) fn new(main: &Main) -> Sampler {
        let one_in = main.trace_one_in;
        Sampler { on: !main.otlp_endpoint.is_empty(), one_in, left: one_in }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Returns a mark if this statement is traced. It is not if its context says that its trace is not recorded.
    pub(crate) fn choose(&mut self, text: Option<&[u8]>) -> Option<Traced> {
        if !self.on {
            return None;
        }
        match text.and_then(context_in_comment) {
            Some((context, recorded)) => recorded.then_some(Traced { context: Some(context) }),
            None if self.one_in == 0 => None,
            None => {
                self.left = self.left.saturating_sub(1);
                if self.left > 0 {
                    return None;
                }
                self.left = self.one_in;
                Some(Traced { context: None })
            }
        }
    }
}

/// Returns the context in the last comment of a text, and whether its trace is recorded.
fn context_in_comment(text: &[u8]) -> Option<(TraceContext, bool)> {
    const KEY: &[u8] = b"traceparent='";
    let tail = &text[text.len().saturating_sub(TRACE_COMMENT_BYTES_MAX)..];
    let comment = &tail[tail.windows(2).rposition(|pair| pair == b"/*")?..];
    let at = comment.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let value = comment.get(at..at + 55)?;
    let (version, rest) = value.split_at_checked(3)?;
    if version != b"00-" || rest.get(32) != Some(&b'-') || rest.get(49) != Some(&b'-') {
        return None;
    }
    let trace: [u8; 16] = hex(rest.get(..32)?)?;
    let parent: [u8; 8] = hex(rest.get(33..49)?)?;
    let [flags] = hex(rest.get(50..52)?)?;
    // All zeros is no id (chapter 3.2.2 of the recommendation).
    (trace != [0; 16] && parent != [0; 8]).then_some((TraceContext { trace, parent }, flags & 1 == 1))
}

fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

    #[test]
    fn a_context_is_found_in_the_last_comment_only() {
        let found = |text: &str| context_in_comment(text.as_bytes());
        let (context, recorded) =
            found(&format!("select 1 /*action='a',traceparent='{CONTEXT}-01'*/")).expect("a context");
        assert_eq!(
            (context.trace[0], context.trace[15], context.parent[7], recorded),
            (0x0a, 0x9c, 0x31, true)
        );
        assert_eq!(found(&format!("select 1 /*traceparent='{CONTEXT}-00'*/")), Some((context, false)));
        for text in [
            "select 1".to_owned(),
            format!("select 'traceparent=''{CONTEXT}-01'"),
            format!("/*traceparent='{CONTEXT}-01'*/ select 1 /* other */"),
            format!("select 1 /*traceparent='{CONTEXT}-0"),
            format!("select 1 /*traceparent='01{}-01'*/", &CONTEXT[2..]),
            format!("select 1 /*traceparent='{}-01'*/", CONTEXT.replace('b', "x")),
            format!(
                "select 1 /*traceparent='{}-01'*/",
                CONTEXT.replace("b7ad6b7169203331", "0000000000000000")
            ),
            "/*".to_owned(),
        ] {
            assert_eq!(found(&text), None, "{text}");
        }
    }

    #[test]
    fn without_a_context_one_in_so_many_is_traced() {
        let main =
            Main { otlp_endpoint: "http://localhost:4318".to_owned(), trace_one_in: 3, ..Main::default() };
        let mut sampler = Sampler::new(&main);
        let traced: Vec<bool> = (0..7).map(|_| sampler.choose(Some(b"select 1")).is_some()).collect();
        assert_eq!(traced, [false, false, true, false, false, true, false]);
        let recorded = format!("select 1 /*traceparent='{CONTEXT}-01'*/");
        assert!(sampler.choose(Some(recorded.as_bytes())).is_some_and(|traced| traced.context.is_some()));
        let mut off = Sampler::new(&Main { trace_one_in: 1, ..Main::default() });
        assert!(!off.is_on() && off.choose(Some(recorded.as_bytes())).is_none());
    }

    proptest::proptest! {
        #[test]
        fn any_comment_is_fine(text in "(/\\*|traceparent='|00-|[0-9a-f]{32}|-|[0-9a-f]{16}|01'|\\*/| ){0,12}") {
            let _found = context_in_comment(text.as_bytes());
        }
    }
}
