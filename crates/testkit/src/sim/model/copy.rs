//! COPY FROM STDIN of the model: takes the session's messages itself until the copy ends.

use super::session::{Refusal, Session, Step};
use super::statement::Tag;
use crate::sim::network::proto::{Body, Fields, Message};

/// A COPY that is receiving. Sync and Flush are ignored meanwhile, as `copyfromparse.c` does.
#[derive(Clone, Debug)]
pub(super) struct CopyIn {
    owner: Tag,
    sum: u32,
    is_done: bool,
}

impl CopyIn {
    pub(super) fn new(owner: Tag) -> Self {
        CopyIn { owner, sum: 0, is_done: false }
    }

    /// CopyInResponse: text, one column.
    pub(super) fn response() -> Message {
        Body::new().byte(0).int16(1).int16(0).message(b'G')
    }

    /// Stands in CommandComplete instead of a count: it shows that every byte arrived once and in order.
    pub(super) fn checksum(&self) -> u32 {
        self.sum % 1_000_000_000
    }

    /// Takes one message; `None` once CopyDone came.
    pub(super) fn step(&mut self, session: &mut Session) -> Result<Option<Step>, Refusal> {
        if self.is_done {
            return Ok(None);
        }
        let Some(message) = session.inbox.pop_front() else { return Ok(Some(Step::NeedInput)) };
        match message.tag {
            b'd' => {
                session.check_copy_data(&self.owner, &message.body);
                self.sum = checksum(self.sum, &message.body);
            }
            b'c' => self.is_done = true,
            b'f' => {
                let reason = Fields(&message.body).text().unwrap_or("").to_owned();
                return Err(Refusal::new("57014", format!("COPY from stdin failed: {reason}")));
            }
            b'S' | b'H' => {}
            b'X' => {
                session.inbox.push_front(message);
                return Err(Refusal::new("08P01", "unexpected EOF on client connection in COPY"));
            }
            other => {
                let text = format!("unexpected message type 0x{other:02X} during COPY from stdin");
                return Err(Refusal::new("08P01", text));
            }
        }
        Ok(Some(Step::Quiet))
    }
}

/// FNV-1a over the data of all CopyData messages, and over where one ends.
fn checksum(start: u32, data: &[u8]) -> u32 {
    let step = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(16_777_619);
    step(data.iter().fold(start ^ 0x811c_9dc5, |sum, &byte| step(sum, byte)), 0xff)
}
