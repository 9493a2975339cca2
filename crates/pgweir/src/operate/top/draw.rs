//! The screen: where each part stands, and what it says. A scene goes in, cells of a terminal come out.

mod popup;
mod rows;

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::model::{Finding, Picture, Rates, Tab, Tone, bytes, counted, duration, per_second};
use super::orders::orders;
use super::view::{Above, View};

/// From this height of a body on, the overview has more tables, with room between them.
const TALL: u16 = 24;

/// Everything that the screen depends on.
pub(super) struct Scene<'a> {
    pub(super) view: &'a View,
    /// `None` until the first reading.
    pub(super) picture: Option<&'a Picture>,
    /// The address of the console; `user` has entered it.
    pub(super) place: &'a str,
    pub(super) user: &'a str,
    /// Why the connection is lost; `None` while it is there.
    pub(super) lost: Option<&'a str>,
    /// The time since the reading that is shown.
    pub(super) age: Duration,
    pub(super) interval: Duration,
    /// The texts of orders that are not answered yet.
    pub(super) pending: &'a [String],
    /// One screen for a file or a pipe: without keys and a chosen line.
    pub(super) is_plain: bool,
}

pub(super) fn style_of(tone: Tone) -> Style {
    match tone {
        Tone::Bad => Style::new().fg(Color::Red),
        Tone::Attention => Style::new().fg(Color::Yellow),
        Tone::Good => Style::new().fg(Color::Green),
    }
}

const DIM: Style = Style::new().fg(Color::DarkGray);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws the scene; returns the number of lines that its table has room for.
pub(super) fn draw(frame: &mut Frame, scene: &Scene) -> usize {
    let mut rest = frame.area();
    let foot = if scene.is_plain { Rect::ZERO } else { cut_bottom(&mut rest) };
    put(frame, cut_top(&mut rest, 1), vec![head(scene, rest.width)]);
    let Some(picture) = scene.picture else {
        put(frame, rest, vec![Line::from("reading the console ...")]);
        return 1;
    };
    let verdict =
        verdict_lines(picture, rest.width, usize::from((frame.area().height / 4).saturating_sub(1)));
    put(frame, cut_top(&mut rest, verdict.len() as u16), verdict);
    let summary = summary(picture, rest.width);
    put(frame, cut_top(&mut rest, summary.len() as u16), summary);
    put(frame, cut_top(&mut rest, 1), vec![tabs(scene.view, scene.is_plain)]);
    let page = body(frame, scene, picture, rest);
    if !scene.is_plain {
        put(frame, foot, vec![foot_line(scene)]);
    }
    popup::draw(frame, scene.view, picture);
    page
}

/// Takes lines from the top of an area.
fn cut_top(rest: &mut Rect, height: u16) -> Rect {
    let height = height.min(rest.height);
    let top = Rect { height, ..*rest };
    rest.y += height;
    rest.height -= height;
    top
}

fn cut_bottom(rest: &mut Rect) -> Rect {
    rest.height = rest.height.saturating_sub(1);
    Rect { y: rest.y + rest.height, height: 1, ..*rest }
}

/// Writes lines into an area, from its top.
fn put(frame: &mut Frame, area: Rect, lines: Vec<Line>) {
    for (line, y) in lines.iter().zip(area.y..area.bottom()) {
        frame.buffer_mut().set_line(area.x, y, line, area.width);
    }
}

/// The first line: the console's address and user, and the age of the screen.
fn head(scene: &Scene, width: u16) -> Line<'static> {
    let may = if scene.view.may_change { "" } else { ", who may only look" };
    let place = format!("pgweir top  {} as {}{may}", scene.place, scene.user);
    let age = duration(u64::try_from(scene.age.as_micros()).unwrap_or(u64::MAX));
    let is_late = scene.age > scene.interval * 2 + Duration::from_secs(1);
    let (state, style) = match scene.lost {
        Some(why) => (format!("LOST {age} ago, trying again: {why}"), style_of(Tone::Bad)),
        None if scene.view.is_frozen => (format!("FROZEN {age} ago"), style_of(Tone::Attention)),
        None if is_late && !scene.is_plain => (format!("no answer for {age}"), style_of(Tone::Attention)),
        None => (format!("every {} s", scene.interval.as_secs_f64()), DIM),
    };
    let used = Span::raw(&place).width() + Span::raw(&state).width();
    let gap = usize::from(width).saturating_sub(used).max(2);
    // A reason is more important than the place.
    if scene.lost.is_some() && used + 2 > usize::from(width) {
        return Line::from(vec![Span::styled("pgweir top  ", BOLD), Span::styled(state, style.patch(BOLD))]);
    }
    Line::from(vec![Span::styled(place, BOLD), Span::raw(" ".repeat(gap)), Span::styled(state, style)])
}

/// The verdict, and below it as many findings as there is room for.
fn verdict_lines(picture: &Picture, width: u16, room: usize) -> Vec<Line<'static>> {
    let verdict = &picture.verdict;
    let mut below = Vec::new();
    let mut shown = 0;
    for finding in &verdict.findings {
        let lines = finding_lines(finding, width);
        if shown > 0 && below.len() + lines.len() > room {
            break;
        }
        below.extend(lines);
        shown += 1;
    }
    let hidden = verdict.findings.len() - shown;
    let more = if hidden > 0 {
        format!("  (and {} more)", counted(hidden as u64, "finding"))
    } else {
        String::new()
    };
    let style = style_of(verdict.tone).patch(BOLD);
    let headline = Line::from(vec![Span::styled(verdict.headline.clone(), style), Span::styled(more, DIM)]);
    [headline].into_iter().chain(below).collect()
}

/// A finding with its remedy, on one line if that is wide enough; a long text takes several lines.
fn finding_lines(finding: &Finding, width: u16) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let style = style_of(finding.tone);
    let (text, remedy) = (format!("  {}", finding.text), format!("  > {}", finding.remedy));
    if Span::raw(&text).width() + Span::raw(&remedy).width() <= width {
        return vec![Line::from(vec![Span::styled(text, style), Span::raw(remedy)])];
    }
    let of_text = wrapped(&finding.text, width.saturating_sub(2));
    let mut lines: Vec<Line> =
        of_text.into_iter().map(|part| Line::from(Span::styled(format!("  {part}"), style))).collect();
    lines.push(Line::from(format!("  {remedy}")));
    lines
}

/// A text in lines of at most this number of characters, if its words are not longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if Span::raw(line.as_str()).width() + 1 + Span::raw(word).width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Clients and servers by state, and what happens in a second.
fn summary(picture: &Picture, width: u16) -> Vec<Line<'static>> {
    let by_state = |name: &'static str, counts: &[(&str, u64)]| {
        let all: u64 = counts.iter().map(|(_, number)| number).sum();
        let parts: Vec<String> = counts.iter().map(|(word, number)| format!("{number} {word}")).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        Line::from(vec![Span::styled(name, DIM), Span::raw(format!("{all}{parts}"))])
    };
    let rates = match picture.rates {
        Some(rates) => rates_text(&rates, usize::from(width).saturating_sub(9)),
        None => "after the next reading".to_owned(),
    };
    vec![
        by_state("Clients  ", &picture.clients),
        by_state("Servers  ", &picture.servers),
        Line::from(vec![Span::styled("Rates    ", DIM), Span::raw(rates)]),
    ]
}

/// The rates that there is room for, the most important first.
fn rates_text(rates: &Rates, width: usize) -> String {
    let mut text = format!("{} statements/s", per_second(rates.statements));
    let mean = rates.statement_us.map(|mean| format!("mean {}", duration(mean as u64)));
    let others = [
        format!("{} tx/s", per_second(rates.transactions)),
        format!("in {}", bytes(rates.bytes_received)),
        format!("out {}", bytes(rates.bytes_sent)),
        format!("{} logins/s", per_second(rates.logins)),
        format!("{:.1} waiting on average", rates.waiting),
        format!("{:.1} transactions open", rates.in_transaction),
    ];
    for part in mean.into_iter().chain(others) {
        if text.chars().count() + part.chars().count() + 2 > width {
            break;
        }
        text = format!("{text}, {part}");
    }
    text
}

fn tabs(view: &View, is_plain: bool) -> Line<'static> {
    let mut spans = Vec::new();
    for (place, tab) in Tab::ALL.into_iter().enumerate() {
        let is_current = tab == view.tab;
        let style = if is_current { BOLD.add_modifier(Modifier::REVERSED) } else { DIM };
        if !is_plain || is_current {
            spans.push(Span::styled(format!(" {} {} ", place + 1, tab.title()), style));
        }
    }
    if !view.filter.is_empty() {
        spans.push(Span::styled(format!("  /{}", view.filter), style_of(Tone::Attention).patch(BOLD)));
    }
    Line::from(spans)
}

/// The view's table, or those of the overview. Returns the number of lines of the table that keys move in.
fn body(frame: &mut Frame, scene: &Scene, picture: &Picture, area: Rect) -> usize {
    if scene.view.tab != Tab::Overview {
        return rows::draw(frame, scene, picture, scene.view.tab, area);
    }
    let is_tall = area.height >= TALL;
    let mut tabs = vec![Tab::Pools];
    tabs.extend(Some(Tab::Nodes).filter(|_| picture.has_nodes));
    tabs.extend(Some(Tab::Clients).filter(|_| is_tall));
    tabs.push(Tab::Statements);
    let (mut rest, mut page) = (area, 1);
    for (place, tab) in tabs.iter().enumerate() {
        // A short table leaves its part to those after it.
        let share = rest.height / (tabs.len() - place) as u16;
        let gap = u16::from(is_tall && place > 0);
        let wanted = scene.view.lines(*tab, picture).len().max(1) as u16 + 1 + gap;
        let is_last = place + 1 == tabs.len();
        let height = if is_last { rest.height } else { wanted.min(share) };
        let mut part = cut_top(&mut rest, height);
        cut_top(&mut part, gap);
        let room = rows::draw(frame, scene, picture, *tab, part);
        page = if *tab == Tab::Pools { room } else { page };
    }
    page
}

/// The line of keys, or what is being typed, or what became of an order.
fn foot_line(scene: &Scene) -> Line<'static> {
    let view = scene.view;
    if view.above == Above::Filter {
        return Line::from(vec![
            Span::styled(format!("filter: {}_", view.filter), BOLD),
            Span::styled("  Enter keeps it, Esc removes it", DIM),
        ]);
    }
    if let Some((text, is_failure)) = &view.message {
        let tone = if *is_failure { Tone::Bad } else { Tone::Good };
        return Line::from(Span::styled(text.clone(), style_of(tone).patch(BOLD)));
    }
    if let [.., last] = scene.pending {
        return Line::from(Span::styled(format!("{last}: under way"), style_of(Tone::Attention)));
    }
    let mut keys = vec![("q", "quit"), ("h", "help"), ("Enter", "more"), ("/", "filter"), ("s", "sort")];
    let letters: Vec<(String, &str)> =
        orders(view.tab).iter().map(|kind| (kind.letter.to_string(), kind.word)).collect();
    keys.extend(letters.iter().map(|(letter, word)| (letter.as_str(), *word)));
    let mut spans = Vec::new();
    for (key, word) in keys {
        spans.push(Span::styled(key.to_owned(), BOLD));
        spans.push(Span::styled(format!(" {word} "), DIM));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests;
