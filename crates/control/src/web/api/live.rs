//! The overview once a second, as server-sent events (HTML standard, "Server-sent events").

use std::rc::Rc;

use bytes::Bytes;
use tokio::sync::mpsc::channel;

use super::super::WebState;
use super::super::access::Reader;
use super::super::limits::STREAMS_MAX;
use super::super::reply::{Refusal, Reply, pieces};
use super::overview;

/// A stream that is counted while it lives.
struct Stream(Rc<WebState>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

pub(super) fn live(web: &Rc<WebState>, reader: &Reader) -> Result<Reply, Refusal> {
    if web.streams.get() >= STREAMS_MAX {
        return Err(Refusal::Unavailable("Too many pages watch already; ask for /api/v1/overview instead."));
    }
    web.streams.set(web.streams.get() + 1);
    let names = reader.sees_names();
    let stream = Stream(Rc::clone(web));
    // A reader that does not keep up misses events, instead of having more than two queued.
    let (sender, receiver) = channel(2);
    tokio::task::spawn_local(async move {
        let web = &stream.0;
        let mut sampled = web.sampled.subscribe();
        while !sender.is_closed() {
            let event = format!(
                "event: overview\nid: {}\ndata: {}\n\n",
                web.model.borrow().sampled_s(),
                overview::overview(web, names)
            );
            // A full queue means a slow reader; only a closed queue ends the stream.
            let _ = sender.try_send(Bytes::from(event));
            tokio::select! {
                changed = sampled.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    Ok(pieces("text/event-stream", receiver))
}
