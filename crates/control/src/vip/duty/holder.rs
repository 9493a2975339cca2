//! The questions to the pooler that has the lease, or had it last: whether it still has the address and serves.

use pgweir_settings::SourceUrl;

use super::Duty;
use crate::sources::http::{Call, Client, Reply};
use crate::vip::ahead::Question;
use crate::vip::decide::{Lease, OldHolder};
use crate::vip::spec::Spec;

impl Duty {
    /// Returns whether the process that has replaced this one has the address; `None` if that is not known.
    pub(super) async fn machine_has_address(&mut self) -> Option<bool> {
        if self.spec.commands.is_none() {
            self.look_at_link();
            return Some(self.is_set());
        }
        // It has this one's name.
        let url = SourceUrl::parse(&self.name()?).ok()?;
        match ask_at(self.register.client(), &url, &self.spec).await.ok()? {
            Reply { status: 200, .. } => Some(true),
            reply => (reply.body.starts_with(b"no address")).then_some(false),
        }
    }

    /// Whether the pooler that had the lease last did not answer shortly before its lease ended.
    pub(super) fn is_last_gone(&mut self) -> bool {
        // While no question is under way, the next one begins in the next round; and one that is not answered takes all of its time.
        let age = (self.spec.question_lasts() + self.spec.period()) * 2;
        let Duty { ahead, last, .. } = self;
        last.as_deref().is_some_and(|last| ahead.is_gone(last, age))
    }

    /// Asks the pooler that has the lease ahead of its end, beside the other work.
    pub(super) fn ask_ahead(&mut self) {
        if self.lease == Lease::Other
            && let Some(holder) = &self.holder
            && let Ok(url) = SourceUrl::parse(holder)
        {
            let question = self.question_at(url);
            self.ahead.ask(holder, question);
        }
    }

    /// Asks the pooler that had the lease last beside the other work; `None` if there is none that can be asked.
    pub(super) fn question(&self) -> Option<Question> {
        let url = SourceUrl::parse(self.last.as_deref()?).ok()?;
        Some(Question::begin(self.question_at(url)))
    }

    /// Returns the question to the pooler at this place.
    fn question_at(&self, url: SourceUrl) -> impl Future<Output = OldHolder> + use<> {
        let (client, spec) = (self.register.client().clone(), self.spec.clone());
        async move { old_holder(&ask_at(&client, &url, &spec).await) }
    }

    /// Asks the pooler that has the lease, or had it last, whether it has the address and serves.
    pub(super) async fn ask(&self) -> OldHolder {
        // The lease of a dead pooler would have ended: this one is renewed, although its pooler may not answer here.
        if self.other_since.is_some_and(|since| since.elapsed() > self.spec.ttl * 2) {
            return OldHolder::Serves;
        }
        let name = self.name();
        let asked = match self.lease {
            Lease::Other => self.holder.as_deref(),
            _ => self.last.as_deref().filter(|last| name.as_deref() != Some(*last)),
        };
        let url = match asked.map(SourceUrl::parse) {
            Some(Ok(url)) => url,
            // A pooler that has the lease and cannot be asked may well serve.
            Some(Err(_)) if self.lease == Lease::Other => return OldHolder::Serves,
            _ => return OldHolder::Gone,
        };
        old_holder(&ask_at(self.register.client(), &url, &self.spec).await)
    }
}

/// Asks the pooler at this place whether it has the address and serves.
async fn ask_at(client: &Client, url: &SourceUrl, spec: &Spec) -> Result<Reply, String> {
    let path = format!("/readyz?vip={}", spec.address.ip);
    client.call(url, Call::get(&path), spec.question_lasts()).await
}

/// Returns what the answer of a pooler says about it. No answer is one, too.
fn old_holder(reply: &Result<Reply, String>) -> OldHolder {
    match reply {
        Ok(reply) if reply.status == 200 => OldHolder::Serves,
        _ => OldHolder::Gone,
    }
}
