//! The user's choices, which keys change: the view, its order and filter, the chosen line, and the box above it.
//!
//! Nothing here draws, and nothing sends: a key that asks for something outside returns an [`Action`].

use super::model::{Line, Picture, Tab};
use super::orders::{Order, orders};

/// A key, apart from how a terminal tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Tab,
    BackTab,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C
    Interrupt,
    /// Ctrl-Z
    Stop,
    /// Ctrl-L
    Redraw,
}

/// An action outside of the view that a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    /// Stop the process as a shell's job.
    Stop,
    /// Draw all of the screen again.
    Redraw,
    /// Read the console now: another view was chosen, which may need other tables.
    Read,
    /// Send the order to the console.
    Send(Order),
}

/// The box above the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Above {
    Nothing,
    /// The filter is being typed.
    Filter,
    /// All values of the chosen line, from this value on.
    Details(usize),
    Help,
    /// Whether the order is to be sent.
    Question(Order),
}

/// The order of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

/// The user's choices.
#[derive(Debug)]
pub(super) struct View {
    pub(super) tab: Tab,
    pub(super) above: Above,
    /// Lines that do not contain this text are not shown.
    pub(super) filter: String,
    /// The picture stays as it is.
    pub(super) is_frozen: bool,
    /// Whether the console's user may change anything.
    pub(super) may_change: bool,
    /// The result of an order, and `true` if it failed. The next key removes the message.
    pub(super) message: Option<(String, bool)>,
    /// The number of lines that the last screen had room for.
    pub(super) page: usize,
    sorts: [Sort; 5],
    chosen: [Chosen; 5],
}

/// The line that is chosen: it keeps its key while lines move.
#[derive(Clone, Debug, Default)]
struct Chosen {
    key: Option<String>,
    /// The place that it had, for when it is gone.
    place: usize,
}

impl View {
    pub(super) fn new(may_change: bool) -> View {
        let sort = |tab: Tab| {
            let (column, is_descending) = tab.first_sort();
            Sort { column, is_descending }
        };
        View {
            tab: Tab::Overview,
            above: Above::Nothing,
            filter: String::new(),
            is_frozen: false,
            may_change,
            message: None,
            page: 10,
            sorts: [
                sort(Tab::Pools),
                sort(Tab::Clients),
                sort(Tab::Servers),
                sort(Tab::Statements),
                sort(Tab::Nodes),
            ],
            chosen: Default::default(),
        }
    }

    /// The order of a view's table.
    pub(super) fn sort(&self, tab: Tab) -> Sort {
        self.sorts[tab.place()]
    }

    /// The lines of a view as they are shown.
    pub(super) fn lines<'a>(&self, tab: Tab, picture: &'a Picture) -> Vec<&'a Line> {
        let wanted = self.filter.to_lowercase();
        let is_wanted = |line: &&Line| {
            wanted.is_empty() || line.cells.iter().any(|cell| cell.shown().to_lowercase().contains(&wanted))
        };
        let mut lines: Vec<&Line> = picture.table(tab).lines.iter().filter(is_wanted).collect();
        let Sort { column, is_descending } = self.sort(tab);
        lines.sort_by(|one, two| {
            let order = one.cells[column].order(&two.cells[column]);
            if is_descending { order.reverse() } else { order }
        });
        lines
    }

    /// The place of the chosen line among the lines that are shown; `None` if there are none.
    pub(super) fn place(&self, lines: &[&Line]) -> Option<usize> {
        let chosen = &self.chosen[self.tab.place()];
        let last = lines.len().checked_sub(1)?;
        let Some(key) = &chosen.key else { return Some(0) };
        Some(lines.iter().position(|line| line.key == *key).unwrap_or(chosen.place.min(last)))
    }

    /// The chosen line.
    pub(super) fn line<'a>(&self, picture: &'a Picture) -> Option<&'a Line> {
        let lines = self.lines(self.tab, picture);
        Some(lines[self.place(&lines)?])
    }

    /// Follows a key.
    pub(super) fn key(&mut self, key: Key, picture: &Picture) -> Option<Action> {
        match key {
            Key::Interrupt => return Some(Action::Quit),
            Key::Stop => return Some(Action::Stop),
            Key::Redraw => return Some(Action::Redraw),
            _ => self.message = None,
        }
        match self.above.clone() {
            Above::Nothing => self.key_in_table(key, picture),
            Above::Filter => {
                self.key_in_filter(key);
                None
            }
            Above::Details(first) => {
                let last = self.line(picture).map_or(0, |line| line.values().count().saturating_sub(1));
                self.above = match key {
                    Key::Down => Above::Details((first + 1).min(last)),
                    Key::Up => Above::Details(first.saturating_sub(1)),
                    Key::PageDown => Above::Details((first + self.page).min(last)),
                    Key::PageUp => Above::Details(first.saturating_sub(self.page)),
                    _ => Above::Nothing,
                };
                None
            }
            Above::Help => {
                self.above = Above::Nothing;
                None
            }
            Above::Question(order) => {
                self.above = Above::Nothing;
                if matches!(key, Key::Char('y' | 'Y')) {
                    return Some(Action::Send(order));
                }
                self.message = Some((format!("{}: not sent", order.text), false));
                None
            }
        }
    }

    fn key_in_filter(&mut self, key: Key) {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Escape => {
                self.filter.clear();
                self.above = Above::Nothing;
            }
            _ => self.above = Above::Nothing,
        }
    }

    fn key_in_table(&mut self, key: Key, picture: &Picture) -> Option<Action> {
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char(digit @ '1'..='6') => return self.go_to(Tab::ALL[digit as usize - '1' as usize]),
            Key::Tab | Key::Right => return self.go_to(self.neighbour(1)),
            Key::BackTab | Key::Left => return self.go_to(self.neighbour(Tab::ALL.len() - 1)),
            Key::Up => self.move_by(-1, picture),
            Key::Down => self.move_by(1, picture),
            Key::PageUp => self.move_by(-(self.page as isize), picture),
            Key::PageDown => self.move_by(self.page as isize, picture),
            Key::Home => self.move_by(isize::MIN, picture),
            Key::End => self.move_by(isize::MAX, picture),
            Key::Char('s' | '>') => self.sort_by_next(1),
            Key::Char('<') => self.sort_by_next(self.tab.columns().len() - 1),
            Key::Char('S') => {
                let sort = &mut self.sorts[self.tab.place()];
                sort.is_descending = !sort.is_descending;
            }
            Key::Char('/') => self.above = Above::Filter,
            Key::Escape => self.filter.clear(),
            Key::Char('h' | '?') => self.above = Above::Help,
            Key::Char(' ') => self.is_frozen = !self.is_frozen,
            Key::Enter if self.line(picture).is_some() => self.above = Above::Details(0),
            Key::Char(letter) => self.ask(letter, picture),
            _ => {}
        }
        None
    }

    fn neighbour(&self, steps: usize) -> Tab {
        let place = Tab::ALL.iter().position(|tab| *tab == self.tab).unwrap_or_default();
        Tab::ALL[(place + steps) % Tab::ALL.len()]
    }

    fn go_to(&mut self, tab: Tab) -> Option<Action> {
        self.tab = tab;
        Some(Action::Read)
    }

    fn move_by(&mut self, steps: isize, picture: &Picture) {
        let lines = self.lines(self.tab, picture);
        let Some(place) = self.place(&lines) else { return };
        let place = place.saturating_add_signed(steps).min(lines.len() - 1);
        self.chosen[self.tab.place()] = Chosen { key: Some(lines[place].key.clone()), place };
    }

    fn sort_by_next(&mut self, steps: usize) {
        let columns = self.tab.columns();
        let sort = &mut self.sorts[self.tab.place()];
        sort.column = (sort.column + steps) % columns.len();
        // Numbers are of interest from the largest on, and names from the first on.
        sort.is_descending = columns[sort.column].side == super::model::Side::Right;
    }

    /// Asks before an order of this letter, if the view has one.
    fn ask(&mut self, letter: char, picture: &Picture) {
        let order = self.line(picture).and_then(|line| {
            orders(self.tab).iter().find(|kind| kind.letter == letter).map(|kind| (kind.make)(line))
        });
        match order {
            None => {}
            Some(Err(why)) => self.message = Some((why, true)),
            Some(Ok(order)) if !self.may_change => {
                self.message = Some((format!("{}: this user may only look (stats_users)", order.text), true));
            }
            Some(Ok(order)) => {
                // The question is about the line that is chosen now, even if another line takes its place.
                self.move_by(0, picture);
                self.above = Above::Question(order);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Reading, Row};
    use super::*;

    fn picture(ids: &[(&str, &str)]) -> Picture {
        let client = |(id, wait): &(&str, &str)| {
            Row::of(&[
                ("id", id),
                ("database", "app"),
                ("user", "u"),
                ("application_name", id),
                ("wait", wait),
            ])
        };
        let now = Reading { clients: Some(ids.iter().map(client).collect()), ..Reading::default() };
        Picture::new(None, &now, 0)
    }

    fn clients(may_change: bool) -> View {
        View { tab: Tab::Clients, ..View::new(may_change) }
    }

    fn ids(view: &View, picture: &Picture) -> Vec<String> {
        view.lines(view.tab, picture).iter().map(|line| line.key.clone()).collect()
    }

    fn chosen(view: &View, picture: &Picture) -> String {
        view.line(picture).map(|line| line.key.clone()).unwrap_or_default()
    }

    #[test]
    fn the_longest_wait_is_first_and_keys_change_the_order() {
        let (mut view, seen) = (clients(true), picture(&[("7", "1"), ("8", "9"), ("9", "5")]));
        assert_eq!(ids(&view, &seen), ["8", "9", "7"]);
        view.key(Key::Char('S'), &seen);
        assert_eq!(ids(&view, &seen), ["7", "9", "8"]);
        for _ in 0..2 {
            view.key(Key::Char('<'), &seen);
        }
        assert_eq!(view.sort(Tab::Clients), Sort { column: 0, is_descending: true });
        assert_eq!(ids(&view, &seen), ["9", "8", "7"]);
        view.key(Key::Char('<'), &seen);
        assert_eq!(view.sort(Tab::Clients), Sort { column: 10, is_descending: false });
    }

    #[test]
    fn the_chosen_line_stays_chosen_when_lines_move() {
        let mut view = clients(true);
        let before = picture(&[("7", "3"), ("8", "2"), ("9", "1")]);
        view.key(Key::Down, &before);
        assert_eq!(chosen(&view, &before), "8");
        let after = picture(&[("9", "9"), ("7", "5"), ("8", "0")]);
        assert_eq!(chosen(&view, &after), "8");
        let gone = picture(&[("9", "9"), ("7", "5")]);
        assert_eq!(chosen(&view, &gone), "7");
        assert_eq!(chosen(&view, &picture(&[])), "");
        view.key(Key::End, &before);
        assert_eq!(chosen(&view, &before), "9");
        view.key(Key::Home, &before);
        assert_eq!(chosen(&view, &before), "7");
    }

    #[test]
    fn a_filter_is_typed_kept_and_removed() {
        let (mut view, seen) = (clients(true), picture(&[("71", "1"), ("8", "9")]));
        for key in [Key::Char('/'), Key::Char('7'), Key::Char('q')] {
            assert_eq!(view.key(key, &seen), None, "letters are text while the filter is typed");
        }
        assert!(ids(&view, &seen).is_empty());
        view.key(Key::Backspace, &seen);
        assert_eq!(ids(&view, &seen), ["71"]);
        view.key(Key::Enter, &seen);
        assert_eq!((view.above.clone(), view.filter.as_str()), (Above::Nothing, "7"));
        view.key(Key::Escape, &seen);
        assert_eq!(ids(&view, &seen).len(), 2);
    }

    #[test]
    fn nothing_is_sent_without_a_yes() {
        let (mut view, seen) = (clients(true), picture(&[("7", "1")]));
        for no in [Key::Char('n'), Key::Enter, Key::Escape, Key::Char(' ')] {
            assert_eq!(view.key(Key::Char('k'), &seen), None);
            assert!(matches!(&view.above, Above::Question(order) if order.text == "KILL_CLIENT 7"));
            assert_eq!(view.key(no, &seen), None);
            assert_eq!(view.above, Above::Nothing);
        }
        view.key(Key::Char('k'), &seen);
        let gone = picture(&[("8", "1")]);
        let Some(Action::Send(order)) = view.key(Key::Char('y'), &gone) else { panic!("it is sent") };
        assert_eq!(order.text, "KILL_CLIENT 7", "the client that was asked about");
    }

    #[test]
    fn a_stats_user_is_told_and_not_asked() {
        let (mut view, seen) = (clients(false), picture(&[("7", "1")]));
        view.key(Key::Char('k'), &seen);
        assert_eq!(view.above, Above::Nothing);
        assert_eq!(
            view.message,
            Some(("KILL_CLIENT 7: this user may only look (stats_users)".to_owned(), true))
        );
        view.key(Key::Down, &seen);
        assert_eq!(view.message, None);
    }

    #[test]
    fn views_are_chosen_by_digits_and_in_turn() {
        let (mut view, seen) = (View::new(true), picture(&[]));
        assert_eq!(view.key(Key::Char('5'), &seen), Some(Action::Read));
        assert_eq!(view.tab, Tab::Statements);
        view.key(Key::Tab, &seen);
        view.key(Key::Tab, &seen);
        assert_eq!(view.tab, Tab::Overview);
        view.key(Key::BackTab, &seen);
        assert_eq!(view.tab, Tab::Nodes);
        assert_eq!(view.key(Key::Enter, &seen), None);
        assert_eq!(view.above, Above::Nothing, "there is no line to look at");
        assert_eq!(view.key(Key::Char('q'), &seen), Some(Action::Quit));
        assert_eq!(view.key(Key::Interrupt, &seen), Some(Action::Quit));
    }
}
