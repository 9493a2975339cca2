//! A page of metrics in one of two text formats: Prometheus's own (0.0.4), or OpenMetrics 1.0. They differ in
//! a counter's family name and in the end of the page.
//!
//! The page is written by hand because the official crate writes only OpenMetrics, and reads its numbers from
//! its own objects.

use std::fmt::Write as _;

use pgweir_core::stats::histogram::Histogram;

/// The format of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    Prometheus,
    OpenMetrics,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Format {
    /// Returns the format that an `Accept` header prefers: the first of the two that it names, as Prometheus
    /// orders them by preference.
    pub(super) fn wanted(accept: &str) -> Format {
        let mut known =
            accept.split(',').filter_map(|kind| match kind.split(';').next().unwrap_or_default().trim() {
                "application/openmetrics-text" => Some(Format::OpenMetrics),
                "text/plain" | "text/*" | "*/*" => Some(Format::Prometheus),
                _ => None,
            });
        known.next().unwrap_or(Format::Prometheus)
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The bounds of classic histograms, in microseconds, from 10 µs to 60 s. Each is the beginning of a bucket
/// of [`Histogram`] or just above one, so the error is below the bucket's width.
const BOUNDS_US: [u64; 20] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// The value of a metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Count(u64),
    /// A time in microseconds, which is shown in seconds.
    Us(u64),
    Plain(f64),
}

impl From<u64> for Number {
    fn from(count: u64) -> Number {
        Number::Count(count)
    }
}

impl From<u32> for Number {
    fn from(count: u32) -> Number {
        Number::Count(count.into())
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        Number::Plain(value)
    }
}

/// Labels in the form they have in a line, written once for all metrics that have them: with a thousand pools
/// there are two hundred thousand lines.
pub(super) struct Labels {
    /// The text `{database="shop",user="web"}`, or nothing.
    text: String,
}

impl Labels {
    pub(super) fn new(pairs: &[(&'static str, &str)]) -> Labels {
        let mut text = String::new();
        push_labels(&mut text, pairs);
        Labels { text }
    }
}

/// A page of metrics that is being written.
pub(super) struct Page {
    format: Format,
    out: String,
    family: String,
    /// [`BOUNDS_US`] in seconds, as texts: a page of many histograms has each of them thousands of times.
    bounds: [String; BOUNDS_US.len()],
    /// The lines of a histogram's buckets, up to the bound and after it.
    beginning: String,
    ending: String,
}

impl Page {
    pub(super) fn new(format: Format) -> Page {
        let (out, bounds) = (String::with_capacity(64 * 1024), BOUNDS_US.map(seconds));
        Page { format, out, family: String::new(), bounds, beginning: String::new(), ending: String::new() }
    }

    /// Begins a family of gauges.
    pub(super) fn gauge(&mut self, name: &str, help: &str) {
        self.begin(name, Kind::Gauge, help);
    }

    /// Begins a family of counters; the name ends in `_total`.
    pub(super) fn counter(&mut self, name: &str, help: &str) {
        self.begin(name, Kind::Counter, help);
    }

    /// Begins a family of classic histograms, in seconds.
    pub(super) fn histogram(&mut self, name: &str, help: &str) {
        self.begin(name, Kind::Histogram, help);
    }

    fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        self.family.clear();
        self.family.push_str(name);
        let shown = match self.format {
            Format::OpenMetrics if kind == Kind::Counter => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(self.out, "# HELP {shown} {help}\n# TYPE {shown} {kind}");
    }

    /// Writes a value of the family that was begun last.
    pub(super) fn value(&mut self, labels: &Labels, value: impl Into<Number>) {
        let value = value.into();
        self.out.push_str(&self.family);
        self.out.push_str(&labels.text);
        self.out.push(' ');
        push_number(&mut self.out, value);
        self.out.push('\n');
    }

    /// Writes a value whose labels no other one has.
    pub(super) fn labelled(&mut self, labels: &[(&'static str, &str)], value: impl Into<Number>) {
        self.value(&Labels::new(labels), value);
    }

    /// Writes a gauge with one value and no labels.
    pub(super) fn single(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.gauge(name, help);
        self.labelled(&[], value);
    }

    /// Writes a histogram of the family that was begun last.
    pub(super) fn times(&mut self, labels: &Labels, times: &Histogram) {
        let (below, count) = (times.counts_below(&BOUNDS_US), times.count());
        let (open, comma) = if labels.text.is_empty() { ("{", "") } else { ("", ",") };
        let shared = labels.text.strip_suffix('}').unwrap_or_default();
        self.beginning.clear();
        for piece in [&self.family, "_bucket", shared, open, comma, "le=\""] {
            self.beginning.push_str(piece);
        }
        let out = &mut self.out;
        let mut shown = None;
        for (bound, below) in
            self.bounds.iter().map(String::as_str).chain(["+Inf"]).zip(below.into_iter().chain([count]))
        {
            // Most counts of a histogram are equal to the one before.
            if shown.replace(below) != Some(below) {
                self.ending.clear();
                self.ending.push_str("\"} ");
                push_number(&mut self.ending, Number::Count(below));
                self.ending.push('\n');
            }
            out.push_str(&self.beginning);
            out.push_str(bound);
            out.push_str(&self.ending);
        }
        for (suffix, value) in [("_sum", Number::Us(times.sum_us())), ("_count", Number::Count(count))] {
            for piece in [&self.family, suffix, &labels.text, " "] {
                out.push_str(piece);
            }
            push_number(out, value);
            out.push('\n');
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out.into_bytes()
    }
}

fn push_labels(out: &mut String, labels: &[(&str, &str)]) {
    let mut before = '{';
    for (name, text) in labels {
        out.push(before);
        before = ',';
        out.push_str(name);
        out.push_str("=\"");
        push_escaped(out, text);
        out.push('"');
    }
    if before == ',' {
        out.push('}');
    }
}

fn push_escaped(out: &mut String, text: &str) {
    if !text.contains(['\\', '"', '\n']) {
        return out.push_str(text);
    }
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
}

fn push_number(out: &mut String, number: Number) {
    match number {
        Number::Count(count) => out.push_str(itoa::Buffer::new().format(count)),
        Number::Us(us) => push_seconds(out, us),
        Number::Plain(value) => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Writes microseconds as seconds, exactly.
fn push_seconds(out: &mut String, us: u64) {
    out.push_str(itoa::Buffer::new().format(us / 1_000_000));
    // OpenMetrics requires bounds to be floating-point numbers.
    out.push('.');
    let (mut rest, mut unit) = (us % 1_000_000, 100_000);
    loop {
        out.push(char::from(b'0' + u8::try_from(rest / unit).expect("a digit")));
        rest %= unit;
        unit /= 10;
        if rest == 0 {
            return;
        }
    }
}

fn seconds(us: u64) -> String {
    let mut text = String::new();
    push_seconds(&mut text, us);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        page.counter("x_total", "Help.");
        page.labelled(&[("database", "a\"b\\c\nd"), ("user", "")], 7_u64);
        page.single("y", "More.", 0.5);
        String::from_utf8(page.finish()).expect("text")
    }

    #[test]
    fn the_formats_differ_where_they_must() {
        let samples =
            "x_total{database=\"a\\\"b\\\\c\\nd\",user=\"\"} 7\n# HELP y More.\n# TYPE y gauge\ny 0.5\n";
        assert_eq!(
            page(Format::Prometheus),
            format!("# HELP x_total Help.\n# TYPE x_total counter\n{samples}")
        );
        assert_eq!(page(Format::OpenMetrics), format!("# HELP x Help.\n# TYPE x counter\n{samples}# EOF\n"));
    }

    #[test]
    fn a_histogram_counts_up_and_ends_with_all() {
        let mut times = Histogram::default();
        [3, 60, 60, 2_000_000, 1 << 40].into_iter().for_each(|us| times.record(us));
        let mut page = Page::new(Format::Prometheus);
        page.histogram("t_seconds", "T.");
        page.times(&Labels::new(&[("part", "wait")]), &times);
        let text = String::from_utf8(page.finish()).expect("text");
        for line in [
            "t_seconds_bucket{part=\"wait\",le=\"0.00001\"} 1",
            "t_seconds_bucket{part=\"wait\",le=\"0.0001\"} 3",
            "t_seconds_bucket{part=\"wait\",le=\"1.0\"} 3",
            "t_seconds_bucket{part=\"wait\",le=\"+Inf\"} 5",
            "t_seconds_count{part=\"wait\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn accept_headers_of_scrapers_are_understood() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::wanted(prometheus), Format::OpenMetrics);
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1";
        assert_eq!(Format::wanted(native), Format::OpenMetrics, "what it asks for first is not there");
        for plain in ["", "*/*", "text/plain", "text/html, text/plain", "application/json"] {
            assert_eq!(Format::wanted(plain), Format::Prometheus, "{plain}");
        }
    }

    #[test]
    fn seconds_are_exact() {
        assert_eq!(
            [0, 10, 2_500_000, 1_000_001, 61_000_000].map(seconds),
            ["0.0", "0.00001", "2.5", "1.000001", "61.0"]
        );
    }
}
