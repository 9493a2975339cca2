//! The third format: Prometheus's protocol buffers, `io.prometheus.client.MetricFamily` one after the other, each behind its
//! length. It is the only one that has native histograms (buckets that grow with the value and need not be chosen), so it is what
//! a Prometheus asks for that was told to take them.
//!
//! Written by hand, as the text is: the messages have a dozen fields, whose numbers are those of metrics.proto in
//! <https://github.com/prometheus/client_model>. Must never write what only one of the formats knows: a scraper's choice of
//! format may not change which series there are.

use pgweir_core::stats::histogram::{BUCKETS, Histogram, bounds};

/// `MetricType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Eight buckets to each doubling, as the histograms themselves have: a value is off by at most nine per cent.
const SCHEMA: i32 = 3;
const STEPS_PER_DOUBLING: f64 = 8.0;
/// What took less than a microsecond counts as nothing: 2^-20 s.
const ZERO_THRESHOLD_S: f64 = 1.0 / (1 << 20) as f64;

/// How a field's value is written (the wire types of protocol buffers).
const VARINT: u64 = 0;
const DOUBLE: u64 = 1;
const LENGTH: u64 = 2;

/// A metric's labels, in order.
type Pairs<'a> = &'a [(&'static str, &'a str)];

/// Families that are being written.
pub(super) struct Families {
    out: Vec<u8>,
    family: Vec<u8>,
    kind: Kind,
    metric: Vec<u8>,
    part: Vec<u8>,
    pair: Vec<u8>,
    /// The native bucket of each bucket of a [`Histogram`], by its middle.
    native: Vec<i32>,
}

impl Families {
    pub(super) fn new() -> Families {
        Families {
            out: Vec::with_capacity(64 * 1024),
            family: Vec::new(),
            kind: Kind::Gauge,
            metric: Vec::new(),
            part: Vec::new(),
            pair: Vec::new(),
            native: (0..BUCKETS).map(native_bucket).collect(),
        }
    }

    /// Begins a family.
    pub(super) fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        self.end();
        self.kind = kind;
        bytes(&mut self.family, 1, name.as_bytes());
        bytes(&mut self.family, 2, help.as_bytes());
        let number = match kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 4,
        };
        number_field(&mut self.family, 3, number);
    }

    fn end(&mut self) {
        if !self.family.is_empty() {
            varint(&mut self.out, self.family.len() as u64);
            self.out.append(&mut self.family);
        }
    }

    /// A counter's or gauge's value.
    pub(super) fn value(&mut self, labels: Pairs<'_>, value: f64) {
        self.labels(labels);
        self.part.clear();
        double(&mut self.part, 1, value);
        bytes(&mut self.metric, if self.kind == Kind::Counter { 3 } else { 2 }, &self.part);
        bytes(&mut self.family, 4, &self.metric);
    }

    /// A histogram, with classic buckets that end at these bounds, below which there are so many; and with native ones.
    pub(super) fn times(
        &mut self,
        labels: Pairs<'_>,
        times: &Histogram,
        count: u64,
        bounds_us: &[u64],
        below: &[u64],
    ) {
        self.labels(labels);
        self.part.clear();
        number_field(&mut self.part, 1, count);
        double(&mut self.part, 2, times.sum_us() as f64 / 1e6);
        for (&bound_us, &below) in bounds_us.iter().zip(below) {
            self.pair.clear();
            number_field(&mut self.pair, 1, below);
            double(&mut self.pair, 2, bound_us as f64 / 1e6);
            bytes(&mut self.part, 3, &self.pair);
        }
        self.native(times);
        bytes(&mut self.metric, 7, &self.part);
        bytes(&mut self.family, 4, &self.metric);
    }

    /// Spans of buckets that follow each other, each with its distance to the one before; and each bucket's difference to the
    /// one before.
    fn native(&mut self, times: &Histogram) {
        number_field(&mut self.part, 5, zigzag(SCHEMA.into()));
        double(&mut self.part, 6, ZERO_THRESHOLD_S);
        let mut zero = 0;
        let mut counts: Vec<(i32, u64)> = Vec::new();
        for (bucket, count) in times.filled() {
            match (bucket, counts.last_mut()) {
                (0, _) => zero = count,
                (_, Some((last, sum))) if *last == self.native[bucket] => *sum += count,
                _ => counts.push((self.native[bucket], count)),
            }
        }
        number_field(&mut self.part, 7, zero);
        let mut spans: Vec<(i32, u64)> = Vec::new();
        let mut next = 0;
        for &(index, _) in &counts {
            match spans.last_mut() {
                Some((_, length)) if index == next => *length += 1,
                _ => spans.push((index - next, 1)),
            }
            next = index + 1;
        }
        if spans.is_empty() {
            // By an empty span it is known for a native one.
            spans.push((0, 0));
        }
        for (offset, length) in spans {
            self.pair.clear();
            number_field(&mut self.pair, 1, zigzag(offset.into()));
            number_field(&mut self.pair, 2, length);
            bytes(&mut self.part, 12, &self.pair);
        }
        self.pair.clear();
        let mut before = 0;
        for (_, count) in counts {
            let count = count.cast_signed();
            varint(&mut self.pair, zigzag(count - before));
            before = count;
        }
        bytes(&mut self.part, 13, &self.pair);
    }

    fn labels(&mut self, labels: Pairs<'_>) {
        self.metric.clear();
        for (name, text) in labels {
            self.pair.clear();
            bytes(&mut self.pair, 1, name.as_bytes());
            bytes(&mut self.pair, 2, text.as_bytes());
            bytes(&mut self.metric, 1, &self.pair);
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.end();
        self.out
    }
}

/// Bucket `i` takes what is above 2^((i-1)/8) s and not above 2^(i/8) s.
fn native_bucket(bucket: usize) -> i32 {
    let (low, high) = bounds(bucket);
    let middle_s = (low + high) as f64 / 2.0 / 1e6;
    (middle_s.log2() * STEPS_PER_DOUBLING).ceil() as i32
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number_field(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3 | VARINT);
    varint(out, value);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, field << 3 | DOUBLE);
    out.extend_from_slice(&value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | LENGTH);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Small numbers of either sign as small ones without.
fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_what_the_definition_says() {
        let mut families = Families::new();
        families.begin("x", Kind::Counter, "h");
        families.value(&[("a", "b")], 1.0);
        let metric =
            [&[0x0a, 6, 0x0a, 1, b'a', 0x12, 1, b'b', 0x1a, 9, 0x09][..], &1.0_f64.to_le_bytes()].concat();
        let body = [&[0x0a, 1, b'x', 0x12, 1, b'h', 0x18, 0, 0x22, 19][..], &metric].concat();
        assert_eq!(metric.len(), 19);
        assert_eq!(families.finish(), [&[u8::try_from(body.len()).expect("short")][..], &body].concat());
    }

    #[test]
    fn native_buckets_hold_the_middle_of_their_own() {
        for bucket in 1..BUCKETS {
            let index = f64::from(native_bucket(bucket));
            let (low_s, high_s) = (((index - 1.0) / 8.0).exp2(), (index / 8.0).exp2());
            let (from, to) = bounds(bucket);
            let middle_s = (from + to) as f64 / 2e6;
            assert!(low_s < middle_s && middle_s <= high_s, "{bucket}");
        }
        let rising: Vec<i32> = (1..BUCKETS).map(native_bucket).collect();
        assert!(rising.is_sorted(), "counts would be in the wrong order");
    }

    #[test]
    fn spans_and_differences_say_where_the_counts_are() {
        let mut times = Histogram::default();
        // 1 s twice, in bucket 0 or 1; far below, 1 us; and nothing at all once.
        [0, 1, 1_000_000, 1_000_000].into_iter().for_each(|us| times.record(us));
        let mut families = Families::new();
        families.native(&times);
        let first = native_bucket(1);
        let second = native_bucket(times.filled().last().expect("filled").0);
        let mut wanted = Vec::new();
        number_field(&mut wanted, 5, 6);
        double(&mut wanted, 6, ZERO_THRESHOLD_S);
        number_field(&mut wanted, 7, 1);
        for (offset, length) in [(first, 1), (second - first - 1, 1)] {
            let mut span = Vec::new();
            number_field(&mut span, 1, zigzag(offset.into()));
            number_field(&mut span, 2, length);
            bytes(&mut wanted, 12, &span);
        }
        bytes(&mut wanted, 13, &[2, 2]);
        assert_eq!(families.part, wanted);
    }

    #[test]
    fn signs_are_folded() {
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
    }
}
