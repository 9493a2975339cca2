//! The box above the table: details of a line, a question, the help.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::{BOLD, DIM};
use crate::operate::top::model::{Picture, Tone};
use crate::operate::top::view::{Above, View};

const HELP: &[(&str, &str)] = &[
    ("1 to 6, Tab, left, right", "another view"),
    ("up, down, PgUp, PgDn, Home, End", "choose a line"),
    ("Enter", "all values of the line"),
    ("s > <", "sort by the next or the previous column"),
    ("S", "sort in the other direction"),
    ("/", "show only lines with a text; Esc shows all"),
    ("space", "freeze the screen, and go on"),
    ("k", "disconnect the client (Clients, Servers)"),
    ("p r c k", "PAUSE, RESUME, RECONNECT, KILL (Pools)"),
    ("a d x w", "ATTACH, DRAIN, DETACH, SWITCHOVER (Nodes)"),
    ("Ctrl-L, Ctrl-Z", "draw again, stop as a job"),
    ("q", "quit"),
    ("", ""),
    ("WAIT", "how long the client waits now; of a pool, the longest"),
    ("LOAD", "executions at the same time, on average"),
    ("KEPT", "servers that a client keeps between transactions"),
    ("idle tx", "a transaction is open, and no statement runs"),
];

pub(super) fn draw(frame: &mut Frame, view: &View, picture: &Picture) {
    match &view.above {
        Above::Nothing | Above::Filter => {}
        Above::Details(first) => details(frame, view, picture, *first),
        Above::Help => {
            let lines = HELP.iter().map(|(key, does)| pair(key, does, 33)).collect();
            show(frame, " help: any key ends it ", lines, 0);
        }
        Above::Question(order) => {
            let lines = vec![
                Line::from(Span::styled(
                    order.question.clone(),
                    super::style_of(Tone::Attention).patch(BOLD),
                )),
                Line::default(),
                Line::from(Span::styled(order.text.clone(), DIM)),
                Line::default(),
                Line::from(vec![Span::styled("y", BOLD), Span::raw(" yes, send it    any other key: no")]),
            ];
            show(frame, " a question ", lines, 0);
        }
    }
}

fn pair(name: &str, value: &str, width: usize) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{name:width$} "), BOLD), Span::raw(value.to_owned())])
}

fn details(frame: &mut Frame, view: &View, picture: &Picture, first: usize) {
    let Some(line) = view.line(picture) else {
        return show(frame, " gone ", vec![Line::from("This line is not there any more.")], 0);
    };
    let values: Vec<(&str, &str)> = line.values().collect();
    let width = values.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines =
        values.iter().map(|(name, value)| pair(name, &pgweir_doctor::printable(value), width)).collect();
    show(frame, " details: up and down move, any other key ends ", lines, first);
}

/// A box in the middle of the screen, as large as its lines need.
fn show(frame: &mut Frame, title: &'static str, lines: Vec<Line<'static>>, first: usize) {
    let area = frame.area();
    let longest = lines.iter().map(Line::width).max().unwrap_or_default().max(title.len() + 2);
    let width = u16::try_from(longest + 4).unwrap_or(u16::MAX).min(area.width);
    let inside = usize::from(width.saturating_sub(4)).max(1);
    let height: usize = lines.iter().map(|line| line.width().div_ceil(inside).max(1)).sum();
    let height = u16::try_from(height + 2).unwrap_or(u16::MAX).min(area.height);
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let place = Rect { x: area.x + x, y: area.y + y, width, height };
    let block = Block::bordered().title(title).padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, place);
    let first = u16::try_from(first).unwrap_or(u16::MAX);
    frame.render_widget(
        Paragraph::new(lines).block(block).wrap(Wrap { trim: false }).scroll((first, 0)),
        place,
    );
}
