//! The statements and message groups that scripts are made of.

use super::message::{
    bind, close, copy_data, copy_done, describe, execute, flush, function_call, parse, query, sync,
};
use crate::sim::model::statement::{SEQUENCE, Tag};
use crate::sim::network::proto::Message;
use crate::sim::plan::{Mode, Plan, Profile, Theme};
use crate::sim::rng::Rng;

/// Makes groups for one client; knows what it prepared.
pub struct Phrases {
    pub(super) rng: Rng,
    client: u32,
    number: u32,
    prepared: Vec<String>,
    /// Names that ever stood for a statement without rows.
    rowless: Vec<String>,
    /// RESET leads to the server's defaults only for clients whose startup packet has no parameters.
    pub may_reset: bool,
    long: bool,
    theme: Theme,
    session: bool,
    /// Settings that servers do not report are kept, too.
    silent: bool,
    named: bool,
    extended: bool,
    /// Clients change and read the board, too.
    boards: bool,
    /// The changes of several tables are followed.
    follows: bool,
}

/// Names a client has for its prepared statements: few, so that they meet.
const STATEMENT_NAMES: u64 = 4;
/// Texts that clients share: few, so that several clients prepare the same.
const SHARED_TEXTS: u64 = 7;

impl Phrases {
    /// Creates the phrases of one client. `long` makes statements that last long enough to be cancelled.
    #[must_use]
    pub fn new(rng: Rng, client: u32, plan: &Plan, profile: &Profile, long: bool) -> Self {
        let session = plan.mode == Mode::Session;
        Phrases {
            rng,
            client,
            number: 0,
            prepared: Vec::new(),
            rowless: Vec::new(),
            may_reset: false,
            long,
            theme: plan.theme,
            session,
            silent: session || plan.keeps_sessions,
            named: session || (profile.has_prepared && plan.max_prepared_statements > 0),
            extended: profile.has_extended,
            // A cancel request must be known to hit a statement of its client's.
            boards: plan.cache.is_some() && !long,
            follows: plan.follow().is_some(),
        }
    }

    pub(super) fn tag(&mut self) -> Tag {
        self.number += 1;
        let duration_us = match self.rng.below(20) {
            0 => 0,
            _ if self.theme == Theme::Cancels => self.rng.skewed(5_000),
            1..12 if self.theme == Theme::Faults && self.long => self.rng.skewed(10_000),
            1..3 if self.theme.is_multiplexed() => self.rng.skewed(20_000),
            _ if self.theme.is_multiplexed() => self.rng.skewed(600),
            1 if self.long => self.rng.skewed(200_000),
            _ if self.long => self.rng.skewed(20_000),
            _ => self.rng.skewed(3_000),
        };
        Tag { client: Some(self.client), number: self.number, duration_us, ..Tag::default() }
    }

    fn tag_with_rows(&mut self) -> Tag {
        let (rows, bytes) = match self.rng.below(if self.theme == Theme::Bulk { 20 } else { 400 }) {
            0 => (self.rng.count(50, 300), 4000),
            1..10 => (self.rng.count(50, 200), self.rng.count(100, 1000)),
            10..20 => (self.rng.count(1, 3), self.rng.count(10_000, 70_000)),
            20..80 => (self.rng.count(2, 20), self.rng.count(0, 300)),
            _ => (self.rng.count(0, 2), 0),
        };
        Tag { rows, bytes, ..self.tag() }
    }

    /// A SELECT with its tag in the text, which is sometimes long.
    fn select(&mut self) -> String {
        let lock = self.needed_lock(25);
        let tag = Tag { lock, ..self.tag_with_rows() };
        let what = if tag.number % 16 == 5 { SEQUENCE } else { "who" };
        let text = format!("SELECT {what} /*{}*/", tag.render());
        format!("{text}{}", self.padding())
    }

    /// The lock that a statement needs, in so many percent of them.
    fn needed_lock(&mut self, percent: u64) -> u64 {
        u64::from(self.theme.is_multiplexed() && self.rng.percent(percent))
    }

    /// A change that takes a lock until its transaction ends.
    pub fn locking(&mut self) -> Vec<Message> {
        let tag = Tag { lock: 1, ..self.tag() }.render();
        self.wrap(&format!("INSERT INTO t /*{tag}*/"))
    }

    /// Returns padding: mostly none, or enough for a message that outgrows the pooler's buffers.
    fn padding(&mut self) -> String {
        let often = if self.theme == Theme::Bulk { 8 } else { 1 };
        if !self.rng.percent(often) {
            return String::new();
        }
        let bytes = *self.rng.pick(&[4_000, 16_380, 17_000, 70_000, 300_000]);
        format!("/*{}*/", "x".repeat(bytes))
    }

    /// A SELECT of up to so many rows.
    pub fn rows_text(&mut self, rows_max: u32) -> String {
        let tag = Tag { rows: self.rng.count(1, rows_max), ..self.tag() };
        format!("SELECT who /*{}*/", tag.render())
    }

    /// A text that other clients prepare, too; its one parameter is an [`Phrases::argument`].
    pub fn shared_text(&mut self) -> String {
        let number = 1 + self.rng.below(SHARED_TEXTS);
        match number {
            1 => "INSERT INTO t VALUES ($1) /*t=1*/".to_owned(),
            2 => "SELECT none($1) /*t=2*/".to_owned(),
            // The same for all clients, and long.
            3 => format!(
                "SELECT who($1) /*t=3 {}*/",
                "y".repeat(if self.theme == Theme::Bulk { 50_000 } else { 500 })
            ),
            number => format!("SELECT who($1) /*t={number}*/"),
        }
    }

    /// The parameter of a shared text.
    pub fn argument(&mut self) -> String {
        let tag = self.tag_with_rows().render();
        format!("{tag} {}", self.padding())
    }

    /// A portal name that is not used elsewhere.
    pub fn portal_name(&mut self) -> String {
        self.number += 1;
        format!("p{}", self.number)
    }

    /// COPY FROM, and the mark that its data must carry.
    pub fn copy_in_text(&mut self) -> (String, String) {
        let tag = self.tag();
        let mark = Tag { duration_us: 0, ..tag }.render();
        (format!("COPY t FROM STDIN /*{}*/", tag.render()), mark)
    }

    /// Opens a transaction block.
    pub fn begin(&mut self) -> Vec<Message> {
        let tag = self.tag().render();
        // Where a cancel may hit the BEGIN itself, it is written so that the pooler does not answer it: the model could not tell which of
        // the messages behind it was hit.
        let texts = if self.long {
            ["BEGIN as always"; 3]
        } else {
            ["BEGIN", "START TRANSACTION", "begin read only"]
        };
        let text = *self.rng.pick(&texts);
        self.wrap(&format!("{text} /*{tag}*/"))
    }

    /// Ends a transaction block.
    pub fn end(&mut self) -> Vec<Message> {
        let tag = self.tag().render();
        let text = *self.rng.pick(&["COMMIT", "COMMIT", "END", "ROLLBACK"]);
        self.wrap(&format!("{text} /*{tag}*/"))
    }

    /// A statement without parameters, by the simple or by the extended protocol.
    pub(super) fn wrap(&mut self, text: &str) -> Vec<Message> {
        if self.extended && self.rng.percent(30) {
            vec![parse("", text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()]
        } else {
            vec![query(text)]
        }
    }

    /// A group of any kind but COPY FROM, which needs more than one step.
    pub fn any_group(&mut self, in_block: bool) -> Vec<Message> {
        // Some clients mostly read: who changes something asks a server for what it reads next.
        let often = if self.client.is_multiple_of(3) { 60 } else { 95 };
        if self.boards && self.rng.percent(often) {
            return self.board(often < 90);
        }
        match self.rng.below(100) {
            0..4 => {
                let tag = self.tag_with_rows().render();
                self.wrap(&format!("COPY t TO STDOUT /*{tag}*/"))
            }
            4..7 => {
                let tag = Tag { rows: self.rng.count(1, 4), ..self.tag() }.render();
                self.wrap(&format!("DO $$notice$$ /*{tag}*/"))
            }
            7..9 if self.may_reset && !in_block => {
                let tag = self.tag().render();
                self.wrap(&format!("DISCARD ALL /*{tag}*/"))
            }
            9..11 if self.named => {
                let tag = self.tag().render();
                self.prepared.clear();
                self.wrap(&format!("DEALLOCATE ALL /*{tag}*/"))
            }
            _ => self.short_group(in_block),
        }
    }

    /// A group that may stand anywhere in a pipeline.
    pub fn short_group(&mut self, in_block: bool) -> Vec<Message> {
        if self.theme == Theme::Sessions && self.rng.percent(60) {
            return self.holding();
        }
        let least = if self.theme == Theme::Prepared && self.rng.percent(50) { 56 } else { 0 };
        match self.rng.between(least, 99) {
            0..30 => {
                let text = self.select();
                vec![query(&text)]
            }
            30..36 => self.several_statements(),
            36..42 => {
                let text = self.setting(in_block);
                self.wrap(&text)
            }
            42..46 => self.failing(),
            46..48 => {
                let tag = self.tag().render();
                vec![query(&format!("/*{tag}*/"))]
            }
            48..52 => self.call(),
            52..54 => {
                let tag = self.tag().render();
                vec![query(&format!("INSERT INTO t /*{tag}*/"))]
            }
            54 => self.oddity(),
            55 => self.blind_copy(),
            56..80 if self.extended && self.named => self.prepared_group(),
            _ if self.extended => self.unnamed_group(),
            _ => {
                let text = self.select();
                vec![query(&text)]
            }
        }
    }

    /// Statements that may share a server with other clients' statements.
    pub fn ridable_group(&mut self) -> Vec<Message> {
        match self.rng.below(100) {
            0..40 => vec![query(&self.select())],
            40..60 => {
                let lock = self.needed_lock(30);
                let tag = Tag { lock, ..self.tag() }.render();
                self.wrap(&format!("INSERT INTO t /*{tag}*/"))
            }
            60..66 => {
                let tag = Tag { rows: self.rng.count(0, 3), ..self.tag() }.render();
                self.wrap(&format!("SELECT fail /*{tag}*/"))
            }
            66..85 if self.extended && self.named => self.prepared_group(),
            _ if self.extended => self.unnamed_group(),
            _ => vec![query(&self.select())],
        }
    }

    fn several_statements(&mut self) -> Vec<Message> {
        let mut text = String::new();
        for _ in 0..self.rng.count(2, 4) {
            let tag = self.tag().render();
            text.push_str(&match self.rng.below(20) {
                0..3 => format!("SELECT fail /*{tag}*/;"),
                3 => format!("COPY t TO STDOUT /*{tag} r=2*/;"),
                4 => format!("INSERT INTO t /*{tag}*/;"),
                _ => self.select() + ";",
            });
        }
        vec![query(&text)]
    }

    /// COPY FROM with its data right behind it, without waiting for the server to ask.
    fn blind_copy(&mut self) -> Vec<Message> {
        let (text, mark) = self.copy_in_text();
        let data = copy_data(format!("{mark} blind").as_bytes());
        match self.rng.below(3) {
            0 if self.extended => {
                vec![parse("", &text), bind("", "", &[]), execute("", 0), data, copy_done(), sync()]
            }
            1 => {
                let (before, behind) = (self.select(), self.select());
                vec![query(&format!("{before}; {text}; {behind}")), data, copy_done()]
            }
            _ => vec![query(&text), data, copy_done()],
        }
    }

    /// Returns messages that a driver would hardly send, and that PostgreSQL accepts.
    fn oddity(&mut self) -> Vec<Message> {
        let text = self.select();
        let failing = |message| vec![message, sync()];
        match self.rng.below(8) {
            0 if self.extended => vec![sync()],
            1 if self.extended => vec![flush(), sync()],
            2 if self.extended => vec![parse("", &text), query(&self.select()), sync()],
            3 if self.extended => failing(execute("nowhere", 0)),
            4 if self.extended => failing(describe(b'P', "nowhere")),
            5 if self.extended => vec![close(b'P', "nowhere"), close(b'S', ""), sync()],
            6 if self.extended => {
                vec![parse("", ""), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()]
            }
            // Copy messages mean nothing outside of a COPY.
            _ => vec![copy_data(b"stray"), copy_done(), query(&text)],
        }
    }

    fn setting(&mut self, in_block: bool) -> String {
        let tag = self.tag();
        let own = format!("c{} v{}", self.client, tag.number);
        let (name, value) = match self.rng.below(if self.silent { 8 } else { 6 }) {
            0..3 => ("application_name", own.as_str()),
            3 => ("DateStyle", *self.rng.pick(&["ISO", "German, DMY", "SQL"])),
            4 => ("TimeZone", *self.rng.pick(&["Etc/UTC", "Asia/Tokyo", "it's"])),
            5 => ("IntervalStyle", *self.rng.pick(&["postgres", "iso_8601"])),
            // A setting that other clients set, too.
            6 => ("work_mem", *self.rng.pick(&["1MB", "2MB"])),
            // What is made then is temporary: its server is kept.
            _ if tag.number.is_multiple_of(8) => ("search_path", "pg_temp"),
            _ if tag.number % 4 == 1 => ("search_path", "off"),
            _ => ("work_mem", own.as_str()),
        };
        let value = value.replace('\'', "''");
        let tag = tag.render();
        match self.rng.below(10) {
            0 if self.may_reset => format!("RESET {name} /*{tag}*/"),
            1..3 if in_block => format!("SET LOCAL {name} = '{value}' /*{tag}*/"),
            _ => format!("SET {name} = '{value}' /*{tag}*/"),
        }
    }

    fn failing(&mut self) -> Vec<Message> {
        let bytes = if self.rng.percent(4) { 90_000 } else { 0 };
        let tag = Tag { rows: self.rng.count(0, 3), bytes, ..self.tag() }.render();
        match self.rng.below(4) {
            0 => vec![query(&format!("SELEKT /*{tag}*/"))],
            1 if self.extended => {
                vec![parse("", &format!("SELEKT /*{tag}*/")), bind("", "", &[]), execute("", 0), sync()]
            }
            2 if self.extended => {
                let text = format!("SELECT fail /*{tag}*/");
                vec![parse("", &text), bind("", "", &[]), execute("", 0), execute("", 0), sync()]
            }
            _ => vec![query(&format!("SELECT fail /*{tag}*/"))],
        }
    }

    /// A change of the board, or a read of it with a text that other clients send, too.
    fn board(&mut self, may_change: bool) -> Vec<Message> {
        let (kind, duration_us) = *self.rng.pick(&[(0, 0), (0, 0), (0, 0), (0, 0), (1, 300), (2, 5_000)]);
        match self.rng.below(10) {
            0 | 1 if may_change => {
                let tag = self.tag().render();
                self.wrap(&format!("UPDATE board /*{tag}*/"))
            }
            2 => {
                let argument = format!("t=30 r=1 d={duration_us}");
                let mut messages = vec![parse("", "SELECT board($1) /*t=30*/"), bind("", "", &[argument])];
                self.fetch(&mut messages);
                messages.push(sync());
                messages
            }
            3 if self.named => {
                let name = "board".to_owned();
                let mut messages = Vec::new();
                if !self.prepared.contains(&name) {
                    messages.push(parse(&name, "SELECT board /*t=31 r=1*/"));
                    self.prepared.push(name.clone());
                }
                messages.push(bind("", &name, &[]));
                self.fetch(&mut messages);
                messages.push(sync());
                messages
            }
            4..8 if self.follows => {
                let (what, number) = *self.rng.pick(&[
                    ("ledger", 40),
                    ("ledger", 40),
                    ("board, ledger", 41),
                    ("journal", 42),
                    ("swap", 43),
                ]);
                self.wrap(&format!("SELECT {what} /*t={number} r=1*/"))
            }
            _ => self.wrap(&format!("SELECT board /*t={} r=1 d={duration_us}*/", 20 + kind)),
        }
    }

    fn call(&mut self) -> Vec<Message> {
        let tag = self.tag().render();
        let oid = if self.rng.percent(15) { 9999 } else { 1000 };
        vec![function_call(oid, &tag)]
    }

    fn unnamed_group(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for _ in 0..self.rng.count(1, 3) {
            if self.rng.percent(50) {
                let text = self.shared_text();
                messages.push(parse("", &text));
                if self.rng.percent(30) {
                    messages.push(describe(b'S', ""));
                }
                let argument = self.argument();
                messages.push(bind("", "", &[argument]));
            } else {
                let text = self.select();
                messages.push(parse("", &text));
                messages.push(bind("", "", &[]));
            }
            self.fetch(&mut messages);
        }
        messages.push(sync());
        messages
    }

    fn prepared_group(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for _ in 0..self.rng.count(1, 3) {
            let name = format!("s{}", self.rng.below(STATEMENT_NAMES));
            let known = self.prepared.contains(&name);
            if known && self.rng.percent(15) {
                messages.push(close(b'S', &name));
                self.prepared.retain(|other| *other != name);
                continue;
            }
            if !known && self.rng.percent(4) {
                // Prepared with a broken text, and used although that failed.
                messages.push(parse(&name, "SELEKT /*t=99*/"));
            } else if (!known && !self.rng.percent(3)) || self.rng.percent(2) {
                let text = self.shared_text();
                messages.push(parse(&name, &text));
                self.prepared.push(name.clone());
                if text.starts_with("INSERT") {
                    self.rowless.push(name.clone());
                }
            }
            // A statement without rows can be described even in a failed transaction; where the pooler must prepare it again
            // for that, it cannot. That one difference is accepted.
            let has_rows = !self.rowless.contains(&name);
            if self.rng.percent(30) && (has_rows || self.session) {
                messages.push(describe(b'S', &name));
            }
            if self.rng.percent(85) {
                let argument = self.argument();
                messages.push(bind("", &name, &[argument]));
                self.fetch(&mut messages);
            }
        }
        messages.push(sync());
        messages
    }

    /// Describe and Execute of the unnamed portal, at once or in portions.
    fn fetch(&mut self, messages: &mut Vec<Message>) {
        if self.rng.percent(50) {
            messages.push(describe(b'P', ""));
        }
        if self.rng.percent(15) {
            // An INSERT's portal can be run once only: in portions it would be an error.
            let portions = self.rng.count(1, 2);
            (0..portions).for_each(|_| messages.push(execute("", 1)));
        } else {
            messages.push(execute("", 0));
        }
    }
}
