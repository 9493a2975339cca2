//! Bar charts as plain SVG that needs nothing but itself.

use std::fmt::Write as _;

use crate::report::stats::short;

/// A chart: groups of bars on one scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Panel {
    /// What the bars show, with the unit.
    pub(crate) title: String,
    /// The groups, left to right.
    pub(crate) groups: Vec<Group>,
}

/// Bars that are to be compared with each other.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// Text below.
    pub(crate) name: String,
    /// The bars, left to right.
    pub(crate) bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    /// Which of [`COLOURS`] it has.
    pub(crate) series: usize,
    /// Its name in the legend.
    pub(crate) name: String,
    /// How long it is.
    pub(crate) value: f64,
}

/// Colours that people with any colour vision can tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#999999", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"];

const BAR_WIDTH: f64 = 34.0;
const GROUP_GAP: f64 = 26.0;
const PANEL_HEIGHT: f64 = 230.0;
const BARS_HEIGHT: f64 = 140.0;
const MARGIN: f64 = 24.0;
const LEGEND_HEIGHT: f64 = 40.0;

/// All panels, one below the other, under one legend. Each group has its own scale: its longest bar fills the height.
#[must_use]
pub(crate) fn panels(panels: &[Panel]) -> String {
    let width = panels.iter().map(panel_width).fold(480.0, f64::max) + 2.0 * MARGIN;
    let height = f64::from(u32::try_from(panels.len()).unwrap_or(0)) * PANEL_HEIGHT + LEGEND_HEIGHT + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    legend(&mut svg, panels);
    let mut top = LEGEND_HEIGHT;
    for panel in panels {
        draw_panel(&mut svg, panel, top);
        top += PANEL_HEIGHT;
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel_width(panel: &Panel) -> f64 {
    panel.groups.iter().map(group_width).sum()
}

fn group_width(group: &Group) -> f64 {
    f64::from(u32::try_from(group.bars.len()).unwrap_or(0)) * BAR_WIDTH + GROUP_GAP
}

fn legend(svg: &mut String, panels: &[Panel]) {
    let mut series: Vec<(usize, &str)> = panels
        .iter()
        .flat_map(|panel| &panel.groups)
        .flat_map(|group| &group.bars)
        .map(|bar| (bar.series, bar.name.as_str()))
        .collect();
    series.sort_unstable();
    series.dedup();
    let mut left = MARGIN;
    for (index, name) in series {
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.0}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"24\">{}</text>",
            colour(index),
            left + 18.0,
            escape(name)
        );
        left += 110.0;
    }
}

fn draw_panel(svg: &mut String, panel: &Panel, top: f64) {
    let title = escape(&panel.title);
    let _ =
        writeln!(svg, "<text x=\"{MARGIN:.0}\" y=\"{:.0}\" font-weight=\"bold\">{title}</text>", top + 18.0);
    let floor = top + 40.0 + BARS_HEIGHT;
    let mut left = MARGIN;
    for group in &panel.groups {
        let longest = group.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let middle = left + (group_width(group) - GROUP_GAP) / 2.0;
        for bar in &group.bars {
            draw_bar(svg, bar, longest, left, floor);
            left += BAR_WIDTH;
        }
        let name = escape(&group.name);
        let _ = writeln!(
            svg,
            "<text x=\"{middle:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{name}</text>",
            floor + 18.0
        );
        left += GROUP_GAP;
    }
}

fn draw_bar(svg: &mut String, bar: &Bar, longest: f64, left: f64, floor: f64) {
    let share = if longest > 0.0 { (bar.value / longest).clamp(0.0, 1.0) } else { 0.0 };
    let height = share * BARS_HEIGHT;
    let value = short(bar.value);
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"><title>{}: {value}</title></rect>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{value}</text>",
        left + 2.0,
        floor - height,
        BAR_WIDTH - 4.0,
        colour(bar.series),
        escape(&bar.name),
        left + BAR_WIDTH / 2.0,
        floor - height - 4.0,
    );
}

fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_height_and_names_are_escaped() {
        let bar = |series, value| Bar { series, name: "a<b".to_owned(), value };
        let group = Group { name: "g".to_owned(), bars: vec![bar(0, 50.0), bar(1, 100.0)] };
        let svg = panels(&[Panel { title: "TPS".to_owned(), groups: vec![group] }]);
        assert!(svg.contains("height=\"140.0\"") && svg.contains("height=\"70.0\""), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }

    #[test]
    fn no_values_draw_nothing_but_the_frame() {
        let svg = panels(&[]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
