//! A table: which of its columns fit, and its lines.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::{BOLD, DIM, Scene, style_of};
use crate::operate::top::model::{Column, Picture, Side, Tab};

/// The columns that fit, as their places among all, each with its width; those of a high rank are left out first, and what is left over goes
/// to the columns that grow.
fn fitting(columns: &[Column], room: u16) -> Vec<(usize, u16)> {
    let needed = |rank: u8| {
        let widths = columns.iter().filter(|column| column.rank <= rank).map(|column| column.width + 1);
        widths.sum::<u16>().saturating_sub(1)
    };
    let ranks = columns.iter().map(|column| column.rank);
    let rank = ranks.filter(|rank| needed(*rank) <= room).max().unwrap_or_default();
    let shown = columns.iter().enumerate().filter(|(_, column)| column.rank <= rank);
    let mut found: Vec<(usize, u16)> = shown.map(|(place, column)| (place, column.width)).collect();
    let growing = found.iter().filter(|(place, _)| columns[*place].grows).count() as u16;
    let mut left = room.saturating_sub(needed(rank));
    let mut parts = growing;
    for (place, width) in &mut found {
        if columns[*place].grows && parts > 0 {
            let part = left / parts;
            *width += part;
            left -= part;
            parts -= 1;
        }
    }
    found
}

/// Draws a view's table; returns the number of lines that there is room for.
pub(super) fn draw(frame: &mut Frame, scene: &Scene, picture: &Picture, tab: Tab, area: Rect) -> usize {
    let room = usize::from(area.height.saturating_sub(1));
    if area.height == 0 {
        return room;
    }
    let (view, columns) = (scene.view, tab.columns());
    let fitting = fitting(columns, area.width);
    let sort = view.sort(tab);
    let buffer = frame.buffer_mut();
    let mut x = area.x;
    for (place, width) in &fitting {
        let is_sorted = sort.column == *place && !scene.is_plain;
        let style = if is_sorted { BOLD.add_modifier(Modifier::UNDERLINED) } else { BOLD };
        cell(buffer, area, (x, area.y, *width), columns[*place].side, columns[*place].title, style);
        x += width + 1;
    }
    let lines = view.lines(tab, picture);
    if lines.is_empty() && room > 0 {
        let table = picture.table(tab);
        let text = match tab {
            _ if !view.filter.is_empty() && !table.lines.is_empty() => "no line has this text",
            _ if table.is_unread => "not read here: there are many; their view reads them",
            Tab::Nodes => "no cluster is configured",
            _ => "none",
        };
        cell(buffer, area, (area.x, area.y + 1, area.width), Side::Left, text, DIM);
        return room;
    }
    let is_main = tab.table() == view.tab.table();
    let chosen = view.place(&lines).filter(|_| is_main);
    let first = chosen.map_or(0, |chosen| (chosen + 1).saturating_sub(room));
    for ((place, line), y) in lines.iter().enumerate().skip(first).zip(area.y + 1..area.bottom()) {
        let mut style = line.tone.map_or(Style::new(), style_of);
        if chosen == Some(place) && !scene.is_plain {
            style = style.add_modifier(Modifier::REVERSED);
            buffer.set_style(Rect { y, height: 1, ..area }, style);
        }
        let mut x = area.x;
        for (place, width) in &fitting {
            cell(buffer, area, (x, y, *width), columns[*place].side, &line.cells[*place].shown(), style);
            x += width + 1;
        }
    }
    room
}

/// Writes a cell at (x, y, width), within the area; a text that is too long ends with an ellipsis.
fn cell(
    buffer: &mut Buffer,
    area: Rect,
    (x, y, width): (u16, u16, u16),
    side: Side,
    text: &str,
    style: Style,
) {
    let width = width.min(area.right().saturating_sub(x));
    if width == 0 || y >= area.bottom() {
        return;
    }
    let needed = Span::raw(text).width();
    if needed > usize::from(width) {
        let (end, _) = buffer.set_stringn(x, y, text, usize::from(width) - 1, style);
        buffer.set_stringn(end, y, "…", 1, style);
        return;
    }
    let gap = if side == Side::Right { width - needed as u16 } else { 0 };
    buffer.set_stringn(x + gap, y, text, needed, style);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_high_rank_are_left_out_and_the_rest_grows() {
        for tab in Tab::ALL {
            for room in [80, 100, 160, 300] {
                let columns = tab.columns();
                let found = fitting(columns, room);
                let total: u16 = found.iter().map(|(_, width)| width + 1).sum::<u16>() - 1;
                assert!(total <= room, "{tab:?} takes {total} of {room}");
                let all = columns.iter().filter(|column| column.rank == 0).count();
                assert!(found.len() >= all);
            }
            assert_eq!(fitting(tab.columns(), 300).len(), tab.columns().len(), "{tab:?}: all fit");
        }
        assert_eq!(
            fitting(Tab::Statements.columns(), 10)[0],
            (0, 6),
            "a very narrow screen keeps the first ones"
        );
    }
}
