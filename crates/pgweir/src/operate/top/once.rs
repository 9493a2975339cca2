//! `pgweir top --once`: one screen as plain text.

use std::io;
use std::thread;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::console::Console;
use super::draw::{Scene, draw};
use super::model::History;
use super::view::View;

/// The size of a screen that nothing says the size of.
const SIZE: (u16, u16) = (80, 24);

/// The overview after two readings, without blanks at the ends of its lines.
pub(super) fn page(console: &mut Console, interval: Duration) -> io::Result<String> {
    let mut history = History::default();
    let clients_max = console.entered.clients_max;
    history.picture(console.read(false)?, interval, clients_max);
    thread::sleep(interval);
    let picture = history.picture(console.read(false)?, interval, clients_max);
    let scene = Scene {
        view: &View::new(console.entered.may_change),
        picture: Some(&picture),
        place: &console.entered.place,
        user: &console.entered.user,
        lost: None,
        age: Duration::ZERO,
        interval,
        pending: &[],
        is_plain: true,
    };
    let (width, height) = size();
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| {
        draw(frame, &scene);
    });
    Ok(text(terminal.backend()))
}

/// The screen's lines, up to the last one that is not empty.
pub(super) fn text(screen: &TestBackend) -> String {
    let buffer = screen.buffer();
    let line = |y: u16| {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    let lines: Vec<String> = (0..buffer.area.height).map(line).collect();
    format!("{}\n", lines.join("\n").trim_end())
}

/// COLUMNS and LINES, or the terminal's size.
fn size() -> (u16, u16) {
    let (columns, lines) = ratatui::crossterm::terminal::size().unwrap_or(SIZE);
    let variable =
        |name| std::env::var(name).ok()?.parse::<u16>().ok().filter(|number| (1..=1000).contains(number));
    (variable("COLUMNS").unwrap_or(columns), variable("LINES").unwrap_or(lines))
}
