//! A server process for one of the pooler's two connections that follow a database: one is asked questions, the other makes a slot and sends the
//! stream.

use crate::sim::context::{Event, SimContext};
use crate::sim::model::backend::{Backend, Stage};
use crate::sim::model::followed::WalEvent;
use crate::sim::model::followed::asked::Answer;
use crate::sim::network::net::End;
use crate::sim::network::proto::{Body, report};

/// The state of the process after its login.
#[derive(Default)]
pub struct Follower {
    /// The question that is not answered.
    question: Option<String>,
    /// The stream has begun.
    streams: bool,
}

/// A question is answered as late as this in one of so many cases.
pub const STALLED_US: u64 = 1_500_000;
const STALLED_ONE_IN: u64 = 200;

impl Backend {
    /// The process goes on with its question or its stream; `false` if it needs input, or waits for transactions.
    pub(in crate::sim::model) fn go_on_following(&mut self, cx: &mut SimContext) -> bool {
        let Stage::Following(follower) = &mut self.stage else { return false };
        if follower.streams {
            return self.stream(cx);
        }
        if let Some(question) = follower.question.clone() {
            return self.answer_follower(cx, &question);
        }
        match self.splitter.message() {
            Ok(Some(message)) if message.tag == b'Q' => {
                let text = String::from_utf8_lossy(&message.body).trim_end_matches('\0').to_owned();
                cx.note(|| format!("server {} is asked {text}", self.pid));
                follower.question = Some(text);
                let stalls = cx.plan.follow().is_some_and(|follow| follow.has_faults)
                    && cx.rng.below(STALLED_ONE_IN) == 0;
                let in_us = 1 + cx.rng.skewed(if stalls { STALLED_US } else { 500 });
                self.sleep(cx, in_us);
                true
            }
            Ok(Some(message)) if message.tag == b'X' => {
                self.close(cx, End::Fin);
                true
            }
            Ok(Some(message)) => {
                cx.fail(
                    "the pooler's own statements are known",
                    format!("server {} got {message:?}", self.pid),
                );
                false
            }
            _ => false,
        }
    }

    fn answer_follower(&mut self, cx: &mut SimContext, question: &str) -> bool {
        let (process, now_us) = (self.pid, cx.now_us);
        let answer = cx.in_wal(|wal, rng| wal.answer(rng, process, question, now_us));
        let mut messages = Vec::new();
        match answer {
            Some(Answer::Later) | None => return false,
            Some(Answer::Row(columns)) => {
                let count = i16::try_from(columns.len()).expect("few columns");
                let row = columns.iter().fold(Body::new().int16(count), |row, column| match column {
                    Some(column) => row.counted(column.as_bytes()),
                    None => row.int32(-1),
                });
                messages.push(row.message(b'D'));
                messages.push(Body::new().text("SELECT 1").message(b'C'));
            }
            Some(Answer::Error(code, text)) => messages.push(report(b'E', "ERROR", code, text)),
            Some(Answer::Stream) => {
                self.stage = Stage::Following(Box::new(Follower { question: None, streams: true }));
                cx.count("streams begun");
                cx.after(1, Event::Wal(WalEvent::Wake(process)));
                let begun = Body::new().byte(0).int16(0).message(b'W');
                self.keep(cx, &begun);
                self.flush(cx);
                return true;
            }
            Some(Answer::Unknown) => {
                cx.fail(
                    "the pooler's own statements are known",
                    format!("server {process} got \"{question}\""),
                );
                return false;
            }
        }
        messages.push(Body::new().byte(b'I').message(b'Z'));
        messages.iter().for_each(|message| self.keep(cx, message));
        if let Stage::Following(follower) = &mut self.stage {
            follower.question = None;
        }
        self.flush(cx);
        true
    }

    fn stream(&mut self, cx: &mut SimContext) -> bool {
        let process = self.pid;
        match self.splitter.message() {
            Ok(Some(message)) if message.tag == b'd' => {
                cx.in_wal(|wal, _| wal.hear_receiver(process, &message.body));
                return true;
            }
            Ok(Some(_)) => {
                self.close(cx, End::Fin);
                return true;
            }
            _ => {}
        }
        let messages = cx.in_wal(|wal, rng| wal.send(rng, process)).unwrap_or_default();
        let sends = !messages.is_empty();
        messages.iter().for_each(|message| self.keep(cx, message));
        self.flush(cx);
        sends
    }
}
