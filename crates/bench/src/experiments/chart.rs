//! Charts as plain SVG. Colours are the page's variables, so that they follow its light and dark dress.

use std::fmt::Write as _;

use crate::report::stats::short;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// About so many lines behind the curves.
const GRID_LINES: f64 = 4.0;

/// A curve: its name, the colour's number, and points from left to right.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// Curves over time.
pub(super) fn lines(series: &[Series], unit_x: &str, top_at_least: f64) -> String {
    let points = || series.iter().flat_map(|series| series.points.iter());
    let max_x = points().map(|(x, _)| *x).fold(1e-9, f64::max);
    let scale = Scale::new(points().map(|(_, y)| *y).fold(top_at_least, f64::max));
    let mut svg = begin(&scale);
    time_axis(&mut svg, max_x, unit_x);
    for series in series {
        let path = path(&series.points, max_x, &scale);
        let _ = write!(
            svg,
            "<path class=\"line c{}\" d=\"{path}\"><title>{}</title></path>",
            series.colour,
            escape(&series.name)
        );
    }
    svg.push_str("</svg>");
    svg + &legend(series.iter().map(|series| (series.name.as_str(), series.colour)))
}

/// Areas on top of each other over time; all series have the same times.
pub(super) fn stacked(series: &[Series], top_at_least: f64) -> String {
    let times: Vec<f64> =
        series.first().map(|series| series.points.iter().map(|(x, _)| *x).collect()).unwrap_or_default();
    let max_x = times.iter().copied().fold(1e-9, f64::max);
    let height = |index: usize| {
        series.iter().filter_map(|series| series.points.get(index)).map(|(_, y)| *y).sum::<f64>()
    };
    let scale = Scale::new((0..times.len()).map(height).fold(top_at_least, f64::max));
    let mut svg = begin(&scale);
    time_axis(&mut svg, max_x, "s");
    let mut floor = vec![0.0; times.len()];
    for series in series {
        let above: Vec<f64> = floor.iter().zip(&series.points).map(|(below, (_, y))| below + y).collect();
        let upper: Vec<(f64, f64)> = times.iter().copied().zip(above.iter().copied()).collect();
        let lower: Vec<(f64, f64)> = times.iter().copied().zip(floor.iter().copied()).rev().collect();
        let back = path(&lower, max_x, &scale).replacen('M', "L", 1);
        let _ = write!(
            svg,
            "<path class=\"area c{}\" d=\"{} {back} Z\"><title>{}</title></path>",
            series.colour,
            path(&upper, max_x, &scale),
            escape(&series.name)
        );
        floor = above;
    }
    svg.push_str("</svg>");
    svg + &legend(series.iter().map(|series| (series.name.as_str(), series.colour)))
}

/// Groups of bars: for each group its name, and for each bar its series and value.
pub(super) fn bars(groups: &[(String, Vec<(usize, f64)>)], series: &[(String, usize)]) -> String {
    let scale =
        Scale::new(groups.iter().flat_map(|(_, bars)| bars).map(|(_, value)| *value).fold(0.0, f64::max));
    let mut svg = begin(&scale);
    let count = |length: usize| f64::from(u32::try_from(length).unwrap_or(1).max(1));
    let group_width = (WIDTH - LEFT - RIGHT) / count(groups.len());
    let bar_width = (group_width * 0.8 / count(series.len())).min(56.0);
    for (number, (name, bars)) in groups.iter().enumerate() {
        let middle = LEFT + group_width * (count(number + 1) - 0.5);
        let mut left = middle - bar_width * count(bars.len()) / 2.0;
        for (index, value) in bars {
            let y = scale.y(*value);
            let (title, colour) =
                series.get(*index).map_or(("", 0), |(name, colour)| (name.as_str(), *colour));
            let _ = write!(
                svg,
                "<rect class=\"bar c{colour}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\">\
                 <title>{}: {}</title></rect><text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left + 1.5,
                bar_width - 3.0,
                (HEIGHT - BOTTOM - y).max(0.0),
                escape(title),
                short(*value),
                left + bar_width / 2.0,
                y - 3.0,
                short(*value)
            );
            left += bar_width;
        }
        let _ = write!(
            svg,
            "<text class=\"x\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
            HEIGHT - 16.0,
            escape(name)
        );
    }
    svg.push_str("</svg>");
    svg + &legend(series.iter().map(|(name, colour)| (name.as_str(), *colour)))
}

/// Values up to a round number, from the bottom to the top.
struct Scale {
    top: f64,
    step: f64,
}

impl Scale {
    fn new(largest: f64) -> Self {
        let largest = if largest > 0.0 { largest } else { 1.0 };
        let raw = largest / GRID_LINES;
        let magnitude = 10_f64.powf(raw.log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = steps.into_iter().map(|step| step * magnitude).find(|step| *step >= raw).unwrap_or(raw);
        Self { top: (largest / step).ceil() * step, step }
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value / self.top).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// The frame with its grid.
fn begin(scale: &Scale) -> String {
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" role=\"img\" preserveAspectRatio=\"xMidYMid meet\">"
    );
    let mut value = 0.0;
    while value <= scale.top * 1.0001 {
        let y = scale.y(value);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"y\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 3.5,
            label(value)
        );
        value += scale.step;
    }
    svg
}

/// Round numbers below, up to the last moment.
fn time_axis(svg: &mut String, max_x: f64, unit: &str) {
    let step = Scale::new(max_x).step;
    let (mut value, y) = (0.0, HEIGHT - 14.0);
    // What would run into the unit at the end is left out.
    while value <= max_x - step * 0.6 {
        let x = LEFT + value / max_x * (WIDTH - LEFT - RIGHT);
        let _ = write!(svg, "<text class=\"x\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", label(value));
        value += step;
    }
    let (x, text) = (WIDTH - RIGHT, label(max_x));
    let _ = write!(svg, "<text class=\"y\" x=\"{x:.1}\" y=\"{y:.1}\">{text} {unit}</text>");
}

/// Axis labels: `0`, `2.5`, `400`, `12k`.
fn label(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 10_000.0 => return format!("{}k", trim(format!("{:.1}", value / 1000.0))),
        size if size >= 10.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    trim(text)
}

fn trim(text: String) -> String {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn path(points: &[(f64, f64)], max_x: f64, scale: &Scale) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let x = LEFT + x / max_x * (WIDTH - LEFT - RIGHT);
        let _ = write!(path, "{}{x:.1} {:.1}", if index == 0 { 'M' } else { 'L' }, scale.y(*y));
    }
    path
}

fn legend<'a>(names: impl Iterator<Item = (&'a str, usize)>) -> String {
    let mut html = String::from("<div class=\"legend\">");
    for (name, colour) in names {
        let _ = write!(html, "<span><i class=\"c{colour}\"></i>{}</span>", escape(name));
    }
    html + "</div>"
}

/// For text inside of HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers_above_the_largest() {
        for (largest, top) in [(0.0, 1.0), (100.0, 100.0), (97.0, 100.0), (3860.0, 4000.0), (0.9, 1.0)] {
            let scale = Scale::new(largest);
            assert!((scale.top - top).abs() < 1e-9, "{largest}: {}", scale.top);
        }
    }

    #[test]
    fn labels_are_short() {
        assert_eq!([0.0, 2.5, 400.0, 12_000.0, 12_500.0].map(label), ["0", "2.5", "400", "12k", "12.5k"]);
    }

    #[test]
    fn names_are_escaped_and_areas_are_closed() {
        let series =
            |name: &str| Series { name: name.to_owned(), colour: 0, points: vec![(0.0, 1.0), (1.0, 2.0)] };
        let svg = stacked(&[series("a<b"), series("c")], 0.0);
        assert!(!svg.contains("a<b") && svg.contains("a&lt;b"), "{svg}");
        assert_eq!(svg.matches(" Z\"").count(), 2);
        assert!(lines(&[series("x")], "s", 0.0).contains("<path class=\"line c0\""));
        let groups = [("p50".to_owned(), vec![(0, 1.0), (1, 2.0)])];
        let html = bars(&groups, &[("direct".to_owned(), 0), ("pgweir".to_owned(), 1)]);
        assert_eq!(html.matches("<rect").count(), 2);
    }
}
