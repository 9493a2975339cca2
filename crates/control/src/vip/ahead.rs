//! Questions to the pooler that has the lease, which are asked while the lease lasts. If that pooler is gone, this is known when the lease ends,
//! and the address does not wait for a machine that does not answer. This file must not decide who has the address.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, spawn_local};

use super::decide::OldHolder;

/// A question that is asked beside the other work of this thread. It ends when this is dropped.
pub(super) struct Question {
    began: Instant,
    answer: Rc<Cell<Option<OldHolder>>>,
    task: JoinHandle<()>,
}

impl Question {
    /// Asks the question.
    pub(super) fn begin(ask: impl Future<Output = OldHolder> + 'static) -> Question {
        let answer = Rc::new(Cell::new(None));
        let told = Rc::clone(&answer);
        let task = spawn_local(async move { told.set(Some(ask.await)) });
        Question { began: Instant::now(), answer, task }
    }

    /// Returns the answer; `None` if there is none yet.
    pub(super) fn answer(&self) -> Option<OldHolder> {
        self.answer.get()
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The knowledge about the pooler that has the lease, gathered before the lease ends.
#[derive(Default)]
pub(super) struct Ahead {
    /// The question that is under way, with the name of the pooler that is asked.
    question: Option<(String, Question)>,
    /// The pooler that did not say that it serves when it was last asked, and the time at which that was.
    gone: Option<(String, Instant)>,
}

impl Ahead {
    /// Asks the pooler of this name, unless a question is under way.
    pub(super) fn ask(&mut self, name: &str, ask: impl Future<Output = OldHolder> + 'static) {
        self.collect();
        if self.question.is_none() {
            self.question = Some((name.to_owned(), Question::begin(ask)));
        }
    }

    /// Whether the pooler of this name did not say that it serves when it was last asked, no longer ago than `age`.
    pub(super) fn is_gone(&mut self, name: &str, age: Duration) -> bool {
        self.collect();
        self.gone.as_ref().is_some_and(|(other, asked)| other == name && asked.elapsed() <= age)
    }

    /// Forgets what is known.
    pub(super) fn forget(&mut self) {
        *self = Ahead::default();
    }

    fn collect(&mut self) {
        let answered = |(_, question): &mut (String, Question)| question.answer().is_some();
        if let Some((name, question)) = self.question.take_if(answered) {
            self.gone = (question.answer() == Some(OldHolder::Gone)).then_some((name, question.began));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn the_last_answer_counts_for_its_pooler_and_for_a_time() {
        let age = Duration::from_secs(60);
        let test = async {
            let mut ahead = Ahead::default();
            assert!(!ahead.is_gone("a", age), "nothing was asked");
            ahead.ask("a", ready(OldHolder::Gone));
            yield_now().await;
            assert!(ahead.is_gone("a", age));
            assert!(!ahead.is_gone("b", age), "another pooler has had the lease since");
            assert!(!ahead.is_gone("a", Duration::ZERO), "the answer is too old");
            ahead.ask("a", pending());
            yield_now().await;
            assert!(ahead.is_gone("a", age), "a question that is not answered changes nothing");
            ahead.forget();
            assert!(!ahead.is_gone("a", age));
            ahead.ask("a", ready(OldHolder::Gone));
            yield_now().await;
            ahead.ask("a", ready(OldHolder::Serves));
            yield_now().await;
            assert!(!ahead.is_gone("a", age), "the later answer counts");
        };
        LocalSet::new().run_until(test).await;
    }
}
