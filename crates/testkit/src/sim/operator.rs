//! An administrator at the console: pauses, resumes, reloads, reconnects, kills, and looks, while the clients work.

use std::collections::VecDeque;

use super::client::message;
use super::client::proving::Proving;
use super::context::{Event, LinkId, PeerEnd, PoolerEnd, SimContext};
use super::plan::Plan;
use super::rng::Rng;
use crate::sim::network::net::{Dir, End};
use crate::sim::network::proto::{ErrorText, Fields, Message, PROTOCOL_3_0, Splitter};

/// Name of the user that may do everything there.
const ADMIN: &str = "admin";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Away,
    LoggingIn,
    /// Between two commands.
    Thinking,
    /// A command is not answered yet.
    Waiting,
    Gone,
}

/// See the module's head.
pub struct Operator {
    phase: Phase,
    link: Option<LinkId>,
    splitter: Splitter,
    proving: Proving,
    /// Commands that belong together, in order.
    tasks: VecDeque<VecDeque<String>>,
    /// Columns of the result that is arriving.
    columns: i16,
    /// Column values of SHOW CLIENTS, to kill one of them.
    clients: Vec<String>,
    /// Servers may be withheld from clients at present.
    pub holds: bool,
    /// The time until which they were withheld.
    pub held_until_us: u64,
}

const TOPICS: [&str; 14] = [
    "POOLS",
    "CLIENTS",
    "SERVERS",
    "DATABASES",
    "USERS",
    "STATS",
    "STATS_TOTALS",
    "STATS_AVERAGES",
    "TOTALS",
    "LISTS",
    "CONFIG",
    "VERSION",
    "MEM",
    "STATE",
];

/// Returns commands of an operator, in which those that undo each other are together.
fn task(plan: &Plan, rng: &mut Rng) -> VecDeque<String> {
    let database = rng.pick(&plan.databases).clone();
    let both = |one: &str, other: &str| vec![one.to_owned(), other.to_owned()];
    let about = |one: &str, other: &str| both(&format!("{one} {database}"), &format!("{other} {database}"));
    let commands = match rng.below(20) {
        0..3 => both("PAUSE", "RESUME"),
        3..6 => about("PAUSE", "RESUME"),
        6..8 => both("RECONNECT", "WAIT_CLOSE"),
        8 => about("RECONNECT", "WAIT_CLOSE"),
        9 => both("SUSPEND", "RESUME"),
        10..12 => both("RELOAD", "SHOW CONFIG"),
        12..14 => vec![format!("SET default_pool_size = {}", rng.between(1, 5))],
        14..16 => both("SHOW CLIENTS", "KILL_CLIENT"),
        16 => about("KILL", "RESUME"),
        17 => about("DISABLE", "ENABLE"),
        _ => vec![format!("SHOW {}", rng.pick(&TOPICS))],
    };
    commands.into()
}

impl Operator {
    /// The operator of a plan.
    #[must_use]
    pub fn new(plan: &Plan, rng: &mut Rng) -> Self {
        let tasks = (0..rng.between(1, 6)).map(|_| task(plan, rng)).collect();
        Operator {
            phase: Phase::Away,
            link: None,
            splitter: Splitter::default(),
            proving: Proving::new(ADMIN),
            tasks,
            columns: 0,
            clients: Vec::new(),
            holds: false,
            held_until_us: 0,
        }
    }

    /// Returns whether the operator has left.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Runs the operator's next action, whose time has come.
    pub fn wake(&mut self, cx: &mut SimContext) {
        match self.phase {
            Phase::Away => self.connect(cx),
            Phase::Thinking => self.command(cx),
            Phase::LoggingIn | Phase::Waiting | Phase::Gone => {}
        }
    }

    fn connect(&mut self, cx: &mut SimContext) {
        let link = cx.open_link(PoolerEnd::Moving, PeerEnd::Operator);
        self.link = Some(link);
        self.phase = Phase::LoggingIn;
        let in_us = 1 + cx.rng.skewed(1000);
        cx.after(in_us, Event::Accept(link));
        let parameters = [("user", ADMIN), ("database", "pgbouncer")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        cx.write(link, Dir::ToPooler, &message::startup(PROTOCOL_3_0, &parameters));
    }

    fn command(&mut self, cx: &mut SimContext) {
        let Some(link) = self.link else { return };
        while self.tasks.front().is_some_and(VecDeque::is_empty) {
            self.tasks.pop_front();
        }
        let Some(mut text) = self.tasks.front_mut().and_then(VecDeque::pop_front) else {
            self.send(cx, link, &message::terminate());
            self.phase = Phase::Gone;
            cx.end(link, Dir::ToPooler, End::Fin);
            return;
        };
        if text == "KILL_CLIENT" {
            let id =
                if self.clients.is_empty() { "0".to_owned() } else { cx.rng.pick(&self.clients).clone() };
            text = format!("{text} {id}");
        }
        let withholds = ["PAUSE", "SUSPEND", "KILL ", "DISABLE"];
        self.holds |= withholds.iter().any(|word| text.starts_with(word));
        cx.checks.operator_did(&text);
        cx.note(|| format!("operator: {text}"));
        self.clients.clear();
        self.phase = Phase::Waiting;
        self.send(cx, link, &message::query(&text));
    }

    fn send(&mut self, cx: &mut SimContext, link: LinkId, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        cx.write(link, Dir::ToPooler, &bytes);
    }

    /// Reads bytes that have arrived.
    pub fn arrived(&mut self, cx: &mut SimContext) {
        let Some(link) = self.link else { return };
        let bytes = cx.read(link, Dir::ToPeer, usize::MAX);
        self.splitter.push(&bytes);
        while self.phase != Phase::Gone {
            match self.splitter.message() {
                Ok(Some(message)) => self.take(cx, link, &message),
                Ok(None) => break,
                Err(why) => return cx.fail("the console answers", why),
            }
        }
        if self.phase != Phase::Gone && cx.link(link).to_peer.end().is_some() {
            cx.fail("the console answers", "the operator was disconnected".to_owned());
        }
    }

    fn take(&mut self, cx: &mut SimContext, link: LinkId, message: &Message) {
        match message.tag {
            b'R' if self.phase == Phase::LoggingIn => match self.proving.answer(message, &mut cx.rng) {
                Ok(bytes) => drop(cx.write(link, Dir::ToPooler, &bytes)),
                Err(why) => cx.fail("the console answers", format!("the operator cannot log in: {why}")),
            },
            b'S' | b'K' if self.phase == Phase::LoggingIn => {}
            b'T' => self.columns = Fields(&message.body).int16().unwrap_or(-1),
            b'D' => self.row(cx, message),
            b'C' | b'N' | b'I' => {}
            b'E' if ErrorText::read(message).severity == "ERROR" => cx.count("console errors"),
            b'Z' => self.answered(cx),
            _ => cx.fail("the console answers", format!("the operator got {message:?}")),
        }
    }

    /// A row: as many fields as the result has columns. The 21st column of SHOW CLIENTS is `id`.
    fn row(&mut self, cx: &mut SimContext, message: &Message) {
        let mut fields = Fields(&message.body);
        let count = fields.int16();
        let values: Vec<_> = (0..count.unwrap_or(0)).map_while(|_| fields.counted()).collect();
        if count != Some(self.columns) || values.len() != usize::try_from(self.columns).unwrap_or(0) {
            cx.fail("the console answers", format!("a row that does not fit its {} columns", self.columns));
        }
        let text = |value: &Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        if values.iter().flat_map(text).all(|value| value != ADMIN)
            && let Some(Some(id)) = values.get(20).map(text)
        {
            self.clients.push(id);
        }
    }

    fn answered(&mut self, cx: &mut SimContext) {
        if self.phase == Phase::Waiting {
            cx.count("console commands");
        }
        if self.tasks.front().is_none_or(VecDeque::is_empty) && std::mem::take(&mut self.holds) {
            self.held_until_us = cx.now_us;
        }
        self.phase = Phase::Thinking;
        let in_us = cx.rng.skewed(400_000);
        cx.after(in_us, Event::Operator);
    }
}
