//! The terminal: it is set up, shows scenes and tells keys; and it is given back as it was on every way out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::console::{self, Console, Entered, Report, Request};
use super::draw::{Scene, draw};
use super::model::{History, Picture, Tab};
use super::options::Options;
use super::view::{Action, Key, View};

/// How long a key is waited for before the console's reports and signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The screen says how old it is: it is drawn at least this often.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// Why the screen ended.
pub(super) enum End {
    Quit,
    /// A signal of this number.
    Signal(u8),
}

/// The terminal while it is ours. When this value is dropped, and in a panic of any thread, the terminal is as it was.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Screen> {
        // Sets the hook for panics, too.
        ratatui::try_init().map(Screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone; there is nothing left to do for it then.
        let _ = ratatui::try_restore();
        let _ = execute!(io::stdout(), Show);
    }
}

/// The state of the program: the screen's contents, and the user's choices.
struct App {
    options: Arc<Options>,
    entered: Entered,
    view: View,
    history: History,
    picture: Option<Picture>,
    /// The time at which the picture was made.
    pictured: Instant,
    lost: Option<String>,
    /// Orders that are not answered yet.
    pending: Vec<String>,
    reports: Sender<Report>,
    requests: Sender<Request>,
}

/// Shows the console until the user quits, or a signal ends the process.
///
/// # Errors
/// The terminal cannot be used.
pub(super) fn show(console: Console, options: Options) -> io::Result<End> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
    }
    let (reports, news) = channel();
    let options = Arc::new(options);
    let entered = console.entered.clone();
    let requests = console::follow(console, Arc::clone(&options), reports.clone());
    let mut app = App {
        view: View::new(entered.may_change),
        options,
        entered,
        history: History::default(),
        picture: None,
        pictured: Instant::now(),
        lost: None,
        pending: Vec::new(),
        reports,
        requests,
    };
    let mut screen = Screen::open()?;
    let mut drawn: Option<Instant> = None;
    loop {
        let number = signal.load(Ordering::Relaxed);
        if number != 0 {
            return Ok(End::Signal(number as u8));
        }
        let mut is_changed = app.hear(&news)?;
        while event::poll(if is_changed { Duration::ZERO } else { LOOK_EVERY })? {
            is_changed = true;
            let Some(key) = key_of(&event::read()?) else { continue };
            match app.key(key) {
                Some(Action::Quit) => return Ok(End::Quit),
                Some(Action::Stop) => {
                    drop(screen);
                    raise(Signal::SIGTSTP)?;
                    screen = Screen::open()?;
                }
                Some(Action::Redraw) => screen.0.clear()?,
                _ => {}
            }
        }
        if is_changed || drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY) {
            app.draw(&mut screen.0)?;
            drawn = Some(Instant::now());
        }
    }
}

impl App {
    /// Takes the console's reports; returns whether there were any.
    fn hear(&mut self, news: &Receiver<Report>) -> io::Result<bool> {
        let mut is_changed = false;
        loop {
            let report = match news.try_recv() {
                Ok(report) => report,
                Err(TryRecvError::Empty) => return Ok(is_changed),
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the console's thread ended"));
                }
            };
            is_changed = true;
            match report {
                Report::Entered(entered) => {
                    self.view.may_change = entered.may_change;
                    self.entered = *entered;
                    self.history.clear();
                }
                Report::Reading(reading) => {
                    self.lost = None;
                    let interval = self.options.interval;
                    let picture = self.history.picture(*reading, interval, self.entered.clients_max);
                    if !self.view.is_frozen || self.picture.is_none() {
                        (self.picture, self.pictured) = (Some(picture), Instant::now());
                    }
                }
                Report::Lost(why) => self.lost = Some(pgweir_doctor::printable(&why)),
                Report::Done(text, result) => {
                    if let Some(place) = self.pending.iter().position(|pending| *pending == text) {
                        self.pending.remove(place);
                    }
                    let is_failure = result.is_err();
                    let said = result.unwrap_or_else(|why| format!("refused: {why}"));
                    self.view.message =
                        Some((pgweir_doctor::printable(&format!("{text}: {said}")), is_failure));
                    self.read();
                }
            }
        }
    }

    /// Follows a key, and does what is asked for at the console; returns the action.
    fn key(&mut self, key: Key) -> Option<Action> {
        let nothing = Picture::default();
        let action = self.view.key(key, self.picture.as_ref().unwrap_or(&nothing));
        match &action {
            Some(Action::Read) => self.read(),
            Some(Action::Send(order)) => {
                self.pending.push(order.text.clone());
                console::send(self.entered.login.clone(), order.text.clone(), self.reports.clone());
            }
            _ => {}
        }
        action
    }

    /// Asks for a reading now.
    fn read(&self) {
        // If the thread has ended, the next report says so.
        let _ = self.requests.send(matches!(self.view.tab, Tab::Clients | Tab::Servers));
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let scene = Scene {
            view: &self.view,
            picture: self.picture.as_ref(),
            place: &self.entered.place,
            user: &self.entered.user,
            lost: self.lost.as_deref(),
            age: self.pictured.elapsed(),
            interval: self.options.interval,
            pending: &self.pending,
            is_plain: false,
        };
        let mut page = self.view.page;
        terminal.draw(|frame| page = draw(frame, &scene))?;
        self.view.page = page.max(1);
        Ok(())
    }
}

/// The key of an event; `None` for another event, and for a key without a meaning here.
fn key_of(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return None };
    if modifiers.contains(KeyModifiers::CONTROL) {
        return match code {
            KeyCode::Char('c') => Some(Key::Interrupt),
            KeyCode::Char('z') => Some(Key::Stop),
            KeyCode::Char('l') => Some(Key::Redraw),
            _ => None,
        };
    }
    Some(match code {
        KeyCode::Char(letter) => Key::Char(*letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use nix::pty::{Winsize, openpty};
    use nix::sys::termios::{LocalFlags, tcgetattr};

    use super::*;

    /// Run by the test below in a pseudo-terminal, and by nothing else.
    #[test]
    #[ignore = "it is started by a_panic_gives_the_terminal_back"]
    fn panics_with_an_open_screen() {
        let _screen = Screen::open().expect("there is a terminal");
        let modes = tcgetattr(io::stdin()).expect("a terminal").local_flags;
        assert!(!modes.contains(LocalFlags::ICANON), "keys come one by one");
        // A panic of another thread, as the console's is.
        let _ = std::thread::spawn(|| panic!("on purpose")).join();
        let modes = tcgetattr(io::stdin()).expect("a terminal").local_flags;
        assert!(modes.contains(LocalFlags::ICANON | LocalFlags::ECHO), "given back before the message");
        panic!("on purpose, too");
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        let before = tcgetattr(&pty.slave).expect("its modes");
        let stdio = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let name = "operate::top::terminal::tests::panics_with_an_open_screen";
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env("RUST_BACKTRACE", "0")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .expect("it starts");
        let ended = child.wait().expect("it ends");
        assert!(!ended.success());
        let after = tcgetattr(&pty.slave).expect("its modes");
        assert_eq!(after.local_flags, before.local_flags);
        assert_eq!(after.input_flags, before.input_flags);
        drop(pty.slave);
        let mut written = Vec::new();
        // The end of a pseudo-terminal that nothing has open any more is an error.
        let _ = File::from(pty.master).read_to_end(&mut written);
        let written = String::from_utf8_lossy(&written);
        let at = |text: &str| written.find(text).unwrap_or_else(|| panic!("{text:?} in {written:?}"));
        assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l"), "the other screen was left");
        assert!(at("\u{1b}[?1049l") < at("on purpose"), "the message can be read");
        assert!(written.rfind("\u{1b}[?25h").is_some(), "the cursor is visible");
    }

    #[test]
    fn keys_are_told_apart_from_their_releases() {
        let press = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert_eq!(key_of(&press(KeyCode::Char('q'), KeyModifiers::NONE)), Some(Key::Char('q')));
        assert_eq!(key_of(&press(KeyCode::Char('S'), KeyModifiers::SHIFT)), Some(Key::Char('S')));
        assert_eq!(key_of(&press(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(Key::Interrupt));
        assert_eq!(key_of(&press(KeyCode::Char('k'), KeyModifiers::CONTROL)), None);
        let release = KeyEvent::new_with_kind(KeyCode::Char('q'), KeyModifiers::NONE, KeyEventKind::Release);
        assert_eq!(key_of(&Event::Key(release)), None);
    }
}
