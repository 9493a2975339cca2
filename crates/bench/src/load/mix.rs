//! What clients send: transactions with weights, from a file or built in, and their messages.
//!
//! ```text
//! # name and weight; then a statement a line, each a separate round trip
//! [short 99]
//! SELECT abalance FROM pgbench_accounts WHERE aid = {1..100000}
//! [slow 1]
//! SELECT pg_sleep(0.03)
//! ```

use pgweir_wire::frontend::{
    Target, encode_bind_head, encode_describe, encode_execute, encode_parse, encode_query, encode_sync,
};

use super::plan::Protocol;
use crate::error::BenchError;

/// Accounts per step of pgbench's scale.
pub(crate) const ACCOUNTS_PER_SCALE: u32 = 100_000;

/// Transactions and how often each is chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mix {
    /// The transactions.
    pub(crate) scripts: Vec<Script>,
    total_weight: u32,
}

/// One kind of transaction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    /// Its name in tables.
    pub(crate) name: String,
    weight: u32,
    /// Its statements, sent one after the other's answer.
    pub(crate) statements: Vec<Statement>,
}

/// A statement as pieces of text between random numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Statement {
    texts: Vec<String>,
    ranges: Vec<(u64, u64)>,
    /// With `$1`, `$2` in place of the numbers.
    parameterised: String,
    /// Its name when it is prepared.
    name: String,
}

impl Mix {
    /// pgbench's `--select-only`.
    #[must_use]
    pub(crate) fn select_only(scale: u32) -> Self {
        let last = u64::from(scale.max(1)) * u64::from(ACCOUNTS_PER_SCALE);
        let text = format!("[select 1]\nSELECT abalance FROM pgbench_accounts WHERE aid = {{1..{last}}};\n");
        Self::parse(&text).expect("a good mix")
    }

    /// One statement, which may have several lines.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub(crate) fn single(statement: &str) -> Result<Self, BenchError> {
        let wrong = |why: &str| BenchError::Usage(format!("--statement: {why}"));
        let text = statement.trim();
        if text.is_empty() {
            return Err(wrong("there is none"));
        }
        if text.starts_with('[') {
            return Err(wrong("no statement begins with [; a mix of several comes from a file, with --mix"));
        }
        let statements = vec![Statement::parse(text, 0).map_err(wrong)?];
        Ok(Self {
            scripts: vec![Script { name: "statement".to_owned(), weight: 1, statements }],
            total_weight: 1,
        })
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`BenchError::Usage`] with the line.
    pub(crate) fn parse(text: &str) -> Result<Self, BenchError> {
        let wrong = |number: usize, why: &str| BenchError::Usage(format!("mix, line {}: {why}", number + 1));
        let mut scripts: Vec<Script> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(head) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                let (name, weight) = head.trim().rsplit_once(' ').unwrap_or((head.trim(), "1"));
                let weight = weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight));
                let weight = weight.ok_or_else(|| wrong(number, "a weight is 1 to 1000000"))?;
                scripts.push(Script { name: name.trim().to_owned(), weight, statements: Vec::new() });
                continue;
            }
            let serial = scripts.iter().map(|script| script.statements.len()).sum();
            let script = scripts
                .last_mut()
                .ok_or_else(|| wrong(number, "a statement before the first [name weight]"))?;
            script.statements.push(Statement::parse(line, serial).map_err(|why| wrong(number, why))?);
        }
        if scripts.is_empty() || scripts.iter().any(|script| script.statements.is_empty()) {
            return Err(BenchError::Usage("mix: each [name weight] needs a statement below it".to_owned()));
        }
        let total_weight = scripts.iter().map(|script| script.weight).sum();
        Ok(Self { scripts, total_weight })
    }

    /// Chooses a transaction.
    pub(super) fn choose(&self, random: &mut Random) -> usize {
        if self.scripts.len() == 1 {
            return 0;
        }
        let mut left = random.below(u64::from(self.total_weight));
        for (index, script) in self.scripts.iter().enumerate() {
            match left.checked_sub(u64::from(script.weight)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        0
    }

    /// Prepares every statement of every transaction, in one go.
    pub(super) fn encode_prepare(&self, out: &mut Vec<u8>) {
        for statement in self.scripts.iter().flat_map(|script| &script.statements) {
            encode_parse(out, statement.name.as_bytes(), statement.parameterised.as_bytes(), &[0, 0]);
        }
        encode_sync(out);
    }
}

impl Statement {
    fn parse(line: &str, serial: usize) -> Result<Self, &'static str> {
        let (mut texts, mut ranges) = (vec![String::new()], Vec::new());
        let mut parameterised = String::new();
        let mut rest = line;
        while let Some((before, range, after)) = next_range(rest)? {
            ranges.push(range);
            texts.last_mut().expect("never empty").push_str(before);
            texts.push(String::new());
            parameterised.push_str(before);
            parameterised.push_str(&format!("${}", ranges.len()));
            rest = after;
        }
        texts.last_mut().expect("never empty").push_str(rest);
        parameterised.push_str(rest);
        Ok(Self { texts, ranges, parameterised, name: format!("S_{serial}") })
    }

    /// Appends the messages of one execution.
    pub(super) fn encode(
        &self,
        protocol: Protocol,
        random: &mut Random,
        scratch: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        scratch.clear();
        if protocol == Protocol::Simple {
            for (index, text) in self.texts.iter().enumerate() {
                scratch.extend_from_slice(text.as_bytes());
                if let Some(range) = self.ranges.get(index) {
                    push_decimal(scratch, random.within(*range));
                }
            }
            encode_query(out, scratch);
            return;
        }
        let name: &[u8] = if protocol == Protocol::Prepared { self.name.as_bytes() } else { b"" };
        if protocol == Protocol::Extended {
            encode_parse(out, b"", self.parameterised.as_bytes(), &[0, 0]);
        }
        // Text parameters, text results.
        scratch.extend_from_slice(&[0, 0]);
        scratch.extend_from_slice(&u16::try_from(self.ranges.len()).unwrap_or(u16::MAX).to_be_bytes());
        for range in &self.ranges {
            let at = scratch.len();
            scratch.extend_from_slice(&[0; 4]);
            push_decimal(scratch, random.within(*range));
            let len = u32::try_from(scratch.len() - at - 4).expect("a number is short");
            scratch[at..at + 4].copy_from_slice(&len.to_be_bytes());
        }
        scratch.extend_from_slice(&[0, 0]);
        encode_bind_head(out, b"", name, scratch.len());
        out.extend_from_slice(scratch);
        encode_describe(out, Target::Portal, b"");
        encode_execute(out, b"", 0);
        encode_sync(out);
    }
}

/// The text before, the bounds, and the text behind the next `{least..most}`.
type Found<'a> = Option<(&'a str, (u64, u64), &'a str)>;

/// Other braces are the statement's own.
fn next_range(text: &str) -> Result<Found<'_>, &'static str> {
    for (at, _) in text.match_indices('{') {
        let Some((inner, after)) = text[at + 1..].split_once('}') else { break };
        let Some((least, most)) = inner.split_once("..") else { continue };
        let (Ok(least), Ok(most)) = (least.trim().parse(), most.trim().parse()) else { continue };
        if least > most {
            return Err("a range is {least..most}");
        }
        return Ok(Some((&text[..at], (least, most), after)));
    }
    Ok(None)
}

fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Random numbers that are fast and good enough to choose rows by (xorshift64*, Vigna 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to `limit` - 1.
    fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product; its bias is far below what matters here.
        let product = u128::from(self.next()) * u128::from(limit);
        u64::try_from(product >> 64).expect("below limit")
    }

    fn within(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.below((most - least).saturating_add(1))
    }

    /// How long until the next of events that come independently of each other, in units of their mean distance.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept")]
    pub(super) fn exponential(&mut self) -> f64 {
        let uniform = ((self.next() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        -uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# a comment\n[short 99]\nSELECT {1..9} + {5..5}, '{}', '{x..y}'\n\n[slow]\nBEGIN\nCOMMIT\n";

    #[test]
    fn a_file_is_read() {
        let mix = Mix::parse(TEXT).expect("good");
        assert_eq!((mix.scripts.len(), mix.total_weight), (2, 100));
        assert_eq!(mix.scripts[1].statements.len(), 2);
        let statement = &mix.scripts[0].statements[0];
        assert_eq!(statement.parameterised, "SELECT $1 + $2, '{}', '{x..y}'");
        assert_eq!(mix.scripts[1].statements[1].name, "S_2");
    }

    #[test]
    fn faults_are_told_with_their_line() {
        for (text, part) in [
            ("SELECT 1", "line 1"),
            ("[a]\nSELECT {9..1}", "line 2"),
            ("[a 0]\nSELECT 1", "weight"),
            ("[a 1]", "needs a statement"),
            ("", "needs a statement"),
        ] {
            let error = Mix::parse(text).expect_err("not good");
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn a_single_statement_has_lines_and_faults() {
        let mix = Mix::single(" SELECT\n# {1..9} ").expect("good");
        assert_eq!(mix.scripts[0].statements[0].parameterised, "SELECT\n# $1");
        for (text, part) in
            [("", "none"), (" \n", "none"), ("[a 1]", "--mix"), ("SELECT {9..1}", "least..most")]
        {
            let error = Mix::single(text).expect_err("not good");
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn weights_are_kept_and_numbers_are_within_range() {
        let (mix, mut random) = (Mix::parse(TEXT).expect("good"), Random::new(1));
        let slow = (0..10_000).filter(|_| mix.choose(&mut random) == 1).count();
        assert!((50..200).contains(&slow), "{slow}");
        assert!((0..1000).all(|_| (3..=7).contains(&random.within((3, 7)))));
        random.within((0, u64::MAX));
    }

    #[test]
    fn waiting_times_have_the_mean_one() {
        let mut random = Random::new(7);
        let mean = (0..20_000).map(|_| random.exponential()).sum::<f64>() / 20_000.0;
        assert!((0.97..1.03).contains(&mean), "{mean}");
    }

    #[test]
    fn a_query_carries_its_numbers() {
        let mix = Mix::parse("[a]\nSELECT {5..5}\n").expect("good");
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        mix.scripts[0].statements[0].encode(Protocol::Simple, &mut Random::new(1), &mut scratch, &mut out);
        assert_eq!(out, b"Q\0\0\0\x0dSELECT 5\0");
    }
}
