//! The script of one model client, written before it begins: message groups of every kind, in transactions
//! and pipelines, with errors, cancels, slow reading and sudden ends.

use super::message::{
    self, bind, copy_data, copy_done, copy_fail, describe, execute, flush, parse, query, sync,
};
use super::phrases::Phrases;
use crate::sim::network::net::End;
use crate::sim::network::proto::{
    GSS_REQUEST, Message, PROTOCOL_3_0, PROTOCOL_3_2, PROTOCOL_3_9999, SSL_REQUEST,
};
use crate::sim::plan::{Mode, Plan, Profile, Theme};
use crate::sim::rng::Rng;

/// The event that a client waits for after it has sent a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// No event: the next step follows at once (a pipeline).
    Nothing,
    /// Every answer it has coming.
    Answers,
    /// CopyInResponse, or every answer.
    CopyIn,
}

/// Messages that are sent together.
#[derive(Clone, Debug)]
pub struct Step {
    /// Time since the step before was over, in microseconds.
    pub think_us: u64,
    /// The messages of the step.
    pub messages: Vec<Message>,
    /// The messages to send instead if the client is not in COPY. Only a step that continues a COPY has them.
    pub unless_copying: Option<Vec<Message>>,
    /// The event that the client waits for.
    pub wait: Wait,
    /// Asks for a cancel so long after the messages were sent.
    pub cancel_after_us: Option<u64>,
}

/// A sudden end.
#[derive(Clone, Copy, Debug)]
pub struct Vanish {
    /// The step in which the client vanishes.
    pub step: usize,
    /// ... after so many of its bytes ...
    pub byte: usize,
    /// ... and so many microseconds.
    pub after_us: u64,
    /// EOF or reset.
    pub end: End,
}

/// The way in which a client leaves when its script is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Terminate, then EOF.
    Terminate,
    /// The client closes the connection without Terminate.
    Eof,
    /// The client sends bytes that are not the protocol. Then it waits to be disconnected, and leaves if it
    /// is not.
    Garbage(Vec<u8>),
}

/// A client's whole plan.
#[derive(Clone, Debug)]
pub struct Script {
    /// The client's number; it stands in its statements.
    pub id: u32,
    /// Database it asks for.
    pub database: String,
    /// The user that the client logs in as.
    pub user: String,
    /// Protocol version it asks for.
    pub version: i32,
    /// Parameters of its startup packet besides these two.
    pub parameters: Vec<(String, String)>,
    /// `true` if the client comes over a unix socket.
    pub unix: bool,
    /// SSLRequest, GSSENCRequest before the startup packet.
    pub requests: Vec<i32>,
    /// `true` if the client begins with TLS at once.
    pub direct_tls: bool,
    /// The bytes that an intruder sends instead of a startup packet; `None` for a real client.
    pub intruder: Option<Vec<u8>>,
    /// The time at which the client connects, from the beginning of the run.
    pub begin_us: u64,
    /// The steps of the client.
    pub steps: Vec<Step>,
    /// The number of bytes that the client reads, and the pause between two reads in microseconds; `None` if
    /// it reads everything at once.
    pub slow: Option<(usize, u64)>,
    /// The maximum size of the pieces in which the client writes.
    pub pieces: Option<usize>,
    /// `true` if the client asks for cancels.
    pub cancels: bool,
    /// `true` if the client sends a cancel request with a key that no connection has.
    pub false_cancel: bool,
    /// The client's sudden end.
    pub vanish: Option<Vanish>,
    /// The client's orderly end.
    pub ending: Ending,
}

/// Returns bytes that are not a startup packet.
fn garbage_before_login(rng: &mut Rng) -> Vec<u8> {
    let known: [&[u8]; 10] = [
        b"GET / HTTP/1.1\r\nHost: db\r\n\r\n",
        b"\0\0\0\0",
        b"\0\0\0\x03",
        b"\x7f\xff\xff\xff\0\x03\0\0",
        b"\xff\xff\xff\xff\0\x03\0\0",
        b"\0\0\0\x08\0\x02\0\0",
        b"\0\0\0\x08\0\x03\0\0",
        b"\0\0\0\x10\0\x03\0\0user\0boss",
        b"\0\0\0\x08\x04\xd2\x16\x2f\0\0\0\x08\x04\xd2\x16\x2f",
        b"\0\0\0\x0c\x04\xd2\x16\x2e\0\0\0\x01",
    ];
    match rng.below(3) {
        0 => {
            let mut bytes = vec![0; rng.index(60) + 1];
            rng.fill(&mut bytes);
            bytes
        }
        _ => rng.pick(&known).to_vec(),
    }
}

/// Returns bytes that are not a message of a client.
fn garbage_after_login(rng: &mut Rng) -> Vec<u8> {
    let known: [&[u8]; 9] = [
        b"y\0\0\0\x04",
        b"Q\0\0\0\x03",
        b"Q\0\0\0\0",
        b"Q\x7f\xff\xff\xffSELECT",
        b"Q\xff\xff\xff\xff",
        b"p\0\0\0\x09late\0",
        b"P\0\0\0\x07abc",
        b"C\0\0\0\x06S\0D\0\0\0\x05X",
        b"B\0\0\0\x08a\0b\0S\0\0\0\x04",
    ];
    match rng.below(4) {
        0 => {
            let mut bytes = vec![0; rng.index(60) + 1];
            rng.fill(&mut bytes);
            bytes
        }
        _ => rng.pick(&known).to_vec(),
    }
}

/// Numbers of statements from here on are no phrases'.
const NUMBERS_BEHIND: u32 = 1_000_000;

/// A client goes to the primary, changes something, goes to the standbys, and reads; several times. `is_auto`: the pooler sends it there.
#[must_use]
pub fn changes_and_reads(id: u32, is_auto: bool, rng: &mut Rng) -> Vec<Step> {
    let (mut steps, mut number) = (Vec::new(), NUMBERS_BEHIND);
    let mut say = |rng: &mut Rng, words: &str, think_us: &[u64]| {
        number += 1;
        let text = format!("{words} /*c={id} n={number}*/");
        let think_us = *rng.pick(think_us);
        let messages = vec![query(&text)];
        steps.push(Step {
            think_us,
            messages,
            unless_copying: None,
            wait: Wait::Answers,
            cancel_after_us: None,
        });
    };
    for _ in 0..rng.between(1, 8) {
        if !is_auto {
            say(rng, "SET pgweir.route = 'primary'", &[0, 2_000, 100_000]);
        }
        (0..rng.between(1, 3)).for_each(|_| say(rng, "INSERT INTO t", &[0, 300, 100_000]));
        if !is_auto {
            let route = *rng.pick(&["standby", "prefer-standby", "any"]);
            say(rng, &format!("SET pgweir.route = '{route}'"), &[0, 300, 10_000]);
        }
        (0..rng.between(1, 5)).for_each(|_| say(rng, "SELECT who", &[0, 300, 5_000, 40_000]));
    }
    steps
}

/// Numbers of statements of transactions, from here on.
const NUMBERS_OF_TRANSACTIONS: u32 = 2_000_000;

/// The groups of a client's transactions.
struct Groups<'a> {
    id: u32,
    number: u32,
    /// The client's portals: few, so that they meet.
    portals: u32,
    rng: &'a mut Rng,
}

impl Groups<'_> {
    fn text(&mut self, words: &str) -> String {
        self.number += 1;
        let (id, number) = (self.id, self.number);
        let (duration_us, more) = match words {
            "COMMIT" => (
                *self.rng.pick(&[0, 200, 3_000, 10_000]),
                format!(" r={}", self.rng.pick(&[0, 20, 100, 300])),
            ),
            _ => (*self.rng.pick(&[0, 0, 200, 3_000]), String::new()),
        };
        let tag = format!("/*c={id} n={number} d={duration_us}{more}*/");
        format!("{} {tag}", words.replace(';', &format!(" {tag};")))
    }

    /// One statement, or several in a string.
    fn one(&mut self, words: &str) -> Vec<Message> {
        let text = self.text(words);
        match words.contains(';') || self.rng.percent(70) {
            true => vec![query(&text)],
            false => vec![parse("", &text), bind("", "", &[]), execute("", 0), sync()],
        }
    }

    /// Statements in one group of extended messages.
    fn together(&mut self, all: &[&str]) -> Vec<Message> {
        let mut messages = Vec::new();
        for words in all {
            messages.extend([parse("", &self.text(words)), bind("", "", &[]), execute("", 0)]);
        }
        messages.push(sync());
        messages
    }

    /// A read whose rows come in portions, with something else in between.
    fn in_portions(&mut self) -> Vec<Vec<Message>> {
        self.portals += 1;
        let portal = format!("q{}", self.portals);
        let text = self.text("SELECT who").replace("*/", " r=4*/");
        let mut groups = vec![vec![parse("", &text), bind(&portal, "", &[]), execute(&portal, 2), sync()]];
        if self.rng.percent(50) {
            groups.push(self.one("INSERT INTO t"));
        }
        groups.push(vec![execute(&portal, 1), sync()]);
        groups.push(vec![message::close(b'P', &portal), sync()]);
        groups
    }
}

/// A client mostly reads the tables that are followed, with the texts of all clients, and changes one of them now and then.
#[must_use]
pub fn reads_of_followed(id: u32, rng: &mut Rng) -> Vec<Step> {
    let (mut steps, mut number) = (Vec::new(), NUMBERS_OF_TRANSACTIONS);
    let think_us = *rng.pick(&[1_000, 10_000, 100_000]);
    for _ in 0..rng.between(20, 200) {
        let read = *rng.pick(&[
            "SELECT board /*t=20 r=1*/",
            "SELECT board /*t=20 r=1*/",
            "SELECT board /*t=22 r=1 d=4000*/",
            "SELECT ledger /*t=40 r=1*/",
            "SELECT ledger /*t=40 r=1*/",
            "SELECT board, ledger /*t=41 r=1*/",
            "SELECT journal /*t=42 r=1*/",
            "SELECT swap /*t=43 r=1*/",
        ]);
        let mut own = |words: &str| {
            number += 1;
            format!("{words} /*c={id} n={number}*/")
        };
        let texts = match rng.below(40) {
            0..2 => vec![own("UPDATE board")],
            2 => vec![own("BEGIN"), own("UPDATE board"), read.to_owned(), own("COMMIT")],
            3 => vec![own("BEGIN"), own("UPDATE board"), own("UPDATE board"), own("ROLLBACK")],
            4..8 => vec![own("BEGIN"), read.to_owned(), own("COMMIT")],
            8..10 => vec![own("BEGIN"), read.to_owned(), read.to_owned(), own("COMMIT")],
            10 => vec![own("BEGIN"), read.to_owned(), own("UPDATE board"), own("COMMIT"), read.to_owned()],
            _ => vec![read.to_owned()],
        };
        for text in texts {
            let messages = match rng.percent(20) {
                true => vec![parse("", &text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()],
                false => vec![query(&text)],
            };
            steps.push(Step {
                think_us: rng.skewed(think_us),
                messages,
                unless_copying: None,
                wait: Wait::Answers,
                cancel_after_us: None,
            });
        }
    }
    steps
}

/// A client changes something in so many transactions, one after the other. `reads_first`: many of them read something before that, and
/// use what has no place at a standby behind that.
#[must_use]
pub fn transactions(script: &Script, count: u64, reads_first: bool, rng: &mut Rng) -> Vec<Step> {
    // A cancel that comes late may hit the BEGIN: see `Phrases::begin`.
    let begin = if script.cancels { "BEGIN as always" } else { "BEGIN" };
    let mut steps = Vec::new();
    let mut say = Groups { id: script.id, number: NUMBERS_OF_TRANSACTIONS, portals: 0, rng };
    for _ in 0..say.rng.between(count / 2, count) {
        let think_us = *say.rng.pick(&[0, 300, 5_000, 20_000]);
        let mut groups = match say.rng.below(10) {
            0 => Vec::new(),
            1 => vec![say.one("BEGIN; INSERT INTO t")],
            _ => vec![say.one(begin)],
        };
        if reads_first && say.rng.percent(60) {
            (0..say.rng.between(1, 2)).for_each(|_| groups.push(say.one("SELECT who")));
        }
        let changes = if reads_first { say.rng.between(0, 3) } else { say.rng.between(1, 3) };
        (0..changes).for_each(|_| groups.push(say.one("INSERT INTO t")));
        if reads_first && !script.cancels {
            match say.rng.below(16) {
                0 => groups.push(say.one("SELECT nextval('a')")),
                1 => groups.push(say.one("SELECT lastval()")),
                2 => groups.push(say.one("SELECT currval('a')")),
                3 => groups.push(say.together(&["SELECT who", "DO $$notice$$"])),
                4 => groups.push(say.together(&["SELECT who", "INSERT INTO t"])),
                5 => groups.push(say.together(&["SELECT who", "SELECT who"])),
                6 => groups.extend([say.one("SELECT fail"), say.one("DO $$notice$$")]),
                7 => groups.extend([say.one("SELECT fail"), say.together(&["DO $$notice$$", "SELECT who"])]),
                8 if !groups.is_empty() => groups.extend(say.in_portions()),
                _ => {}
            }
        }
        if say.rng.percent(30) {
            groups.push(say.one("SELECT who"));
        }
        let end = *say.rng.pick(&["COMMIT", "COMMIT", "COMMIT", "END", "ROLLBACK"]);
        groups.push(say.one(end));
        if say.rng.percent(10) {
            groups = vec![groups.concat()];
        }
        for (at, messages) in groups.into_iter().enumerate() {
            let think_us = if at == 0 { think_us } else { *say.rng.pick(&[0, 0, 0, 2_000]) };
            steps.push(Step {
                think_us,
                messages,
                unless_copying: None,
                wait: Wait::Answers,
                cancel_after_us: None,
            });
        }
    }
    steps
}

/// Deepest pipeline, in message groups.
const PIPELINE_GROUPS_MAX: u32 = 50;

/// Writes one client's script.
pub struct ScriptWriter<'a> {
    plan: &'a Plan,
    profile: &'a Profile,
    rng: Rng,
    phrases: Phrases,
    script: Script,
    in_block: bool,
}

impl<'a> ScriptWriter<'a> {
    /// Creates the writer for client `id` of a plan.
    #[must_use]
    pub fn new(plan: &'a Plan, profile: &'a Profile, mut rng: Rng, id: usize) -> Self {
        let id = u32::try_from(id).expect("few clients");
        let cancels = rng.percent(match plan.theme {
            Theme::Cancels => 80,
            Theme::Faults => 50,
            _ => 20,
        });
        let slow = rng.percent(if plan.theme == Theme::Bulk { 50 } else { 12 });
        let script = Script {
            id,
            database: rng.pick(&plan.databases).clone(),
            user: rng.pick(&plan.users).clone(),
            version: *rng.pick(&[PROTOCOL_3_0, PROTOCOL_3_0, PROTOCOL_3_0, PROTOCOL_3_2, PROTOCOL_3_9999]),
            parameters: Vec::new(),
            unix: rng.percent(20),
            requests: Vec::new(),
            direct_tls: false,
            intruder: rng.percent(3).then(|| garbage_before_login(&mut rng)),
            begin_us: rng.skewed(if plan.theme == Theme::Cancels { 10_000 } else { 200_000 }),
            steps: Vec::new(),
            slow: slow.then(|| (*rng.pick(&[200, 2_000, 20_000]), rng.between(50, 3_000))),
            pieces: rng.percent(15).then(|| rng.index(60) + 1),
            cancels,
            false_cancel: rng.percent(5),
            vanish: None,
            ending: match rng.below(100) {
                0..68 => Ending::Terminate,
                68..95 => Ending::Eof,
                _ => Ending::Garbage(garbage_after_login(&mut rng)),
            },
        };
        let long = cancels || rng.percent(10);
        let phrases = Phrases::new(rng.fork(), id, plan, profile, long);
        ScriptWriter { plan, profile, rng, phrases, script, in_block: false }
    }

    /// Writes the script.
    #[must_use]
    pub fn write(mut self) -> Script {
        self.first_statements();
        let mut left = self.rng.count(0, self.plan.passages_max);
        while left > 0 {
            left -= 1;
            self.passage();
        }
        if self.profile.bears_vanishing && !self.script.steps.is_empty() && self.rng.percent(18) {
            self.script.vanish = Some(self.vanish());
        }
        self.script
    }

    fn first_statements(&mut self) {
        let phrases = &mut self.phrases;
        let multiplexed = self.plan.theme.is_multiplexed();
        if self.rng.percent(if multiplexed || self.plan.cache.is_some() { 5 } else { 50 }) {
            let value = match self.plan.cache {
                // The cache compares it, as every setting of a session.
                Some(_) => "reader".to_owned(),
                None => format!("c{} start", self.script.id),
            };
            self.script.parameters.push(("application_name".to_owned(), value));
        }
        for (name, value) in
            [("DateStyle", "German, DMY"), ("TimeZone", "Asia/Tokyo"), ("client_encoding", "LATIN1")]
        {
            if !multiplexed && self.rng.percent(10) {
                self.script.parameters.push((name.to_owned(), value.to_owned()));
            }
        }
        phrases.may_reset = self.script.parameters.is_empty();
        if self.plan.keeps_sessions && self.script.id % 7 == 3 {
            let value = match self.plan.cache {
                // The cache compares it, as every setting of a session.
                Some(_) => "reader".to_owned(),
                None => format!("c{} start", self.script.id),
            };
            self.script.parameters.push(("work_mem".to_owned(), value));
        }
        let tls = self.plan.client_tls != "disable" && !self.script.unix;
        self.script.direct_tls = tls && self.rng.percent(15);
        for (code, often) in [(GSS_REQUEST, 10), (SSL_REQUEST, if tls { 50 } else { 15 })] {
            if !self.script.direct_tls && self.rng.percent(often) {
                self.script.requests.push(code);
            }
        }
    }

    fn vanish(&mut self) -> Vanish {
        let step = self.rng.index(self.script.steps.len());
        if self.rng.percent(15) {
            // Says goodbye without waiting for what it asked for.
            self.script.steps[step].messages.push(message::terminate());
        }
        let bytes: usize = self.script.steps[step].messages.iter().map(Message::wire_len).sum();
        Vanish {
            step,
            byte: if self.rng.percent(50) { bytes } else { self.rng.index(bytes + 1) },
            after_us: if self.rng.percent(50) { self.rng.skewed(20_000) } else { 0 },
            end: *self.rng.pick(&[End::Fin, End::Reset]),
        }
    }

    /// One thing a client does between two pauses: a group, a transaction, a pipeline.
    fn passage(&mut self) {
        if self.plan.theme.is_multiplexed() && self.rng.percent(85) {
            let messages = self.phrases.ridable_group();
            return self.step(messages, Wait::Answers);
        }
        match self.rng.below(100) {
            0..20 if self.plan.mode != Mode::Statement => self.block(),
            20..30 => self.pipeline(),
            _ => self.group(),
        }
    }

    fn block(&mut self) {
        let begin = self.phrases.begin();
        if self.rng.percent(25) {
            // The whole block in one go.
            let mut messages = begin;
            for _ in 0..self.rng.count(0, 4) {
                messages.extend(self.phrases.short_group(true));
            }
            messages.extend(self.phrases.end());
            self.step(messages, Wait::Answers);
            return;
        }
        self.step(begin, Wait::Answers);
        self.in_block = true;
        if self.plan.theme.is_multiplexed() && self.rng.percent(50) {
            let messages = self.phrases.locking();
            self.step(messages, Wait::Answers);
            let messages = self.phrases.short_group(true);
            self.step(messages, Wait::Answers);
            // It holds the lock for long, sometimes.
            if let Some(step) = self.script.steps.last_mut().filter(|_| self.rng.percent(60)) {
                step.think_us = 200_000 + self.rng.skewed(1_500_000);
            }
        }
        for _ in 0..self.rng.count(0, 4) {
            if self.rng.percent(15) {
                self.pipeline();
            } else {
                self.group();
            }
        }
        self.in_block = false;
        let end = self.phrases.end();
        self.step(end, Wait::Answers);
    }

    fn pipeline(&mut self) {
        let depth = if self.rng.percent(10) { PIPELINE_GROUPS_MAX } else { self.rng.count(2, 8) };
        let in_one_write = self.rng.percent(50);
        let mut messages = Vec::new();
        for i in 0..depth {
            messages.extend(self.phrases.short_group(self.in_block));
            if !in_one_write && i + 1 < depth {
                self.step(std::mem::take(&mut messages), Wait::Nothing);
            }
        }
        self.step(messages, Wait::Answers);
    }

    fn group(&mut self) {
        match self.rng.below(100) {
            0..6 => self.copy_in_simple(),
            6..10 if self.profile.has_extended => self.copy_in_extended(),
            10..15 if self.profile.has_extended => self.flushed_group(),
            15..20 if self.profile.has_extended && self.may_span_groups() => self.portal_across_groups(),
            20..24 if self.profile.has_extended && self.may_span_groups() => self.unnamed_across_groups(),
            _ => {
                let messages = self.phrases.any_group(self.in_block);
                self.step(messages, Wait::Answers);
            }
        }
    }

    /// Unnamed statements and portals of an earlier group are there as long as the server is the client's for sure. (A
    /// cancel could hit the BEGIN that makes it so.)
    fn may_span_groups(&self) -> bool {
        !self.script.cancels && (self.in_block || self.plan.mode == Mode::Session)
    }

    fn portal_across_groups(&mut self) {
        if !self.in_block {
            return;
        }
        let text = self.phrases.rows_text(6);
        let portal = self.phrases.portal_name();
        let first = vec![parse("", &text), bind(&portal, "", &[]), execute(&portal, 2), sync()];
        self.step(first, Wait::Answers);
        for _ in 0..self.rng.count(1, 4) {
            let rows = self.rng.count(0, 3);
            self.step(vec![execute(&portal, rows), sync()], Wait::Answers);
        }
        self.step(vec![message::close(b'P', &portal), sync()], Wait::Answers);
    }

    fn unnamed_across_groups(&mut self) {
        let text = self.phrases.shared_text();
        let first = vec![parse("", &text), describe(b'S', ""), sync()];
        self.step(first, Wait::Answers);
        for _ in 0..self.rng.count(1, 3) {
            let argument = self.phrases.argument();
            self.step(vec![bind("", "", &[argument]), execute("", 0), sync()], Wait::Answers);
        }
    }

    /// Parse and Describe with Flush, as drivers do that want the types before they bind.
    fn flushed_group(&mut self) {
        let text = self.phrases.shared_text();
        self.step(vec![parse("", &text), describe(b'S', ""), flush()], Wait::Answers);
        let argument = self.phrases.argument();
        self.step(vec![bind("", "", &[argument]), execute("", 0), sync()], Wait::Answers);
    }

    fn copy_in_simple(&mut self) {
        let (text, data) = self.copy_parts();
        if self.rng.percent(40) {
            let messages = std::iter::once(query(&text)).chain(data).collect();
            self.step(messages, Wait::Answers);
        } else {
            self.step(vec![query(&text)], Wait::CopyIn);
            self.continue_copy(data, Vec::new());
        }
    }

    fn copy_in_extended(&mut self) {
        let (text, mut data) = self.copy_parts();
        let mut messages = vec![parse("", &text), bind("", "", &[]), execute("", 0)];
        let kind = self.rng.below(3);
        data.push(sync());
        match kind {
            // Blind, as a pipeline would.
            0 => {
                messages.extend(data);
                self.step(messages, Wait::Answers);
            }
            // As libpq: Sync at once, which COPY swallows, and another one after the data. Where a cancel may hit before
            // or after the first Sync is read, the client cannot know the number of answers.
            1 if !self.script.cancels => {
                messages.push(sync());
                self.step(messages, Wait::CopyIn);
                self.continue_copy(data, Vec::new());
            }
            _ => {
                messages.push(flush());
                self.step(messages, Wait::CopyIn);
                self.continue_copy(data, vec![sync()]);
            }
        }
    }

    fn continue_copy(&mut self, data: Vec<Message>, otherwise: Vec<Message>) {
        self.step(data, Wait::Answers);
        if let Some(step) = self.script.steps.last_mut() {
            step.unless_copying = Some(otherwise);
        }
    }

    fn copy_parts(&mut self) -> (String, Vec<Message>) {
        let (text, mark) = self.phrases.copy_in_text();
        let mut messages = Vec::new();
        for i in 0..self.rng.count(0, 6) {
            let size = match self.rng.below(if self.plan.theme == Theme::Bulk { 10 } else { 100 }) {
                0 => 400_000,
                1..5 => 40_000,
                _ => self.rng.skewed(300),
            };
            let mut line = format!("{mark} i={i} ").into_bytes();
            line.extend((0..size).map(|at| b'a' + u8::try_from(at % 23).expect("below 23")));
            messages.push(copy_data(&line));
            if self.rng.percent(5) {
                messages.push(flush());
            }
        }
        messages.push(if self.rng.percent(15) { copy_fail("changed my mind") } else { copy_done() });
        (text, messages)
    }

    fn step(&mut self, messages: Vec<Message>, wait: Wait) {
        let often_s = if self.plan.theme.is_multiplexed() { 1 } else { 5 };
        let briefly_us = if self.plan.theme == Theme::Faults { 300 } else { 5_000 };
        let think_us =
            if self.rng.percent(often_s) { self.rng.skewed(1_500_000) } else { self.rng.skewed(briefly_us) };
        // Around the time when the statement ends, a cancel is most dangerous.
        let (often, late_us) = match self.plan.theme {
            Theme::Cancels => (70, 6_000),
            Theme::Multiplexed => (30, 8_000),
            Theme::Faults => (60, 6_000),
            _ => (35, 30_000),
        };
        let cancel = self.script.cancels && self.rng.percent(often);
        self.script.steps.push(Step {
            think_us,
            messages,
            unless_copying: None,
            wait,
            cancel_after_us: cancel.then(|| self.rng.skewed(late_us)),
        });
    }
}
