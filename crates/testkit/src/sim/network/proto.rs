//! The simulator's own codec for protocol v3, apart from `pgweir-wire` on purpose: the peers of the pooler must not share
//! its mistakes about the wire.

/// One message: type byte and body (without the length field).
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The message type.
    pub tag: u8,
    /// The bytes after the length field.
    pub body: Vec<u8>,
}

/// The longest message a peer accepts before it calls the stream broken.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Protocol version 3.0 as a startup packet names it.
pub const PROTOCOL_3_0: i32 = 196_608;
/// Protocol version 3.2: longer cancel keys.
pub const PROTOCOL_3_2: i32 = 196_610;
/// A minor version that will never exist; a server that gets it must answer NegotiateProtocolVersion.
pub const PROTOCOL_3_9999: i32 = 196_608 + 9999;
/// Request code of CancelRequest.
pub const CANCEL_REQUEST: i32 = 80_877_102;
/// Request code of SSLRequest.
pub const SSL_REQUEST: i32 = 80_877_103;
/// Request code of GSSENCRequest.
pub const GSS_REQUEST: i32 = 80_877_104;

impl Message {
    /// A message without a body.
    #[must_use]
    pub fn bare(tag: u8) -> Self {
        Message { tag, body: Vec::new() }
    }

    /// Appends the message as it stands on the wire.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.tag);
        let length = u32::try_from(self.body.len() + 4).expect("simulated messages are small");
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&self.body);
    }

    /// Bytes on the wire.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        self.body.len() + 5
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.body[..self.body.len().min(120)];
        let text: String =
            shown.iter().map(|&b| if (32..127).contains(&b) { b as char } else { '.' }).collect();
        write!(f, "{}({} bytes \"{text}\")", self.tag.escape_ascii(), self.body.len())
    }
}

/// Builds the body of a message, field by field.
#[derive(Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// An empty body.
    #[must_use]
    pub fn new() -> Self {
        Body::default()
    }

    /// Appends a byte.
    #[must_use]
    pub fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Appends an Int16.
    #[must_use]
    pub fn int16(mut self, value: i16) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends an Int32.
    #[must_use]
    pub fn int32(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// String with its terminator.
    #[must_use]
    pub fn text(mut self, value: &str) -> Self {
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self
    }

    /// Bytes as they are.
    #[must_use]
    pub fn raw(mut self, value: &[u8]) -> Self {
        self.0.extend_from_slice(value);
        self
    }

    /// Int32 length and bytes, as fields of rows and parameters have them.
    #[must_use]
    pub fn counted(self, value: &[u8]) -> Self {
        let length = i32::try_from(value.len()).expect("simulated fields are small");
        self.int32(length).raw(value)
    }

    /// The finished message.
    #[must_use]
    pub fn message(self, tag: u8) -> Message {
        Message { tag, body: self.0 }
    }

    /// The finished first packet of a connection: a length, no type byte.
    #[must_use]
    pub fn first_packet(self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() + 4).expect("simulated packets are small");
        let mut packet = length.to_be_bytes().to_vec();
        packet.extend_from_slice(&self.0);
        packet
    }
}

/// Reads the fields of a body; `None` when it is shorter than what is asked.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// Reads an Int16.
    pub fn int16(&mut self) -> Option<i16> {
        Some(i16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// Reads an Int32.
    pub fn int32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    /// A terminated string.
    pub fn text(&mut self) -> Option<&'a str> {
        let end = self.0.iter().position(|&b| b == 0)?;
        let text = std::str::from_utf8(self.take(end)?).ok()?;
        self.take(1)?;
        Some(text)
    }

    /// A counted field; inner `None` is NULL.
    pub fn counted(&mut self) -> Option<Option<&'a [u8]>> {
        let length = self.int32()?;
        match usize::try_from(length) {
            Ok(n) => Some(Some(self.take(n)?)),
            Err(_) => Some(None),
        }
    }
}

/// Cuts a stream of bytes into messages.
#[derive(Default)]
pub struct Splitter {
    bytes: Vec<u8>,
    read: usize,
}

impl Splitter {
    /// Adds what was received.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that do not make a message yet.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.read..]
    }

    /// The next message with a type byte.
    ///
    /// # Errors
    /// A length field that no message can have.
    pub fn message(&mut self) -> Result<Option<Message>, String> {
        let rest = self.rest();
        if rest.len() < 5 {
            return Ok(None);
        }
        let tag = rest[0];
        let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
        if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(format!("length {length} in the header of message type {}", tag.escape_ascii()));
        }
        if rest.len() < length + 1 {
            return Ok(None);
        }
        let body = rest[5..=length].to_vec();
        self.read += length + 1;
        Ok(Some(Message { tag, body }))
    }

    /// The next packet without a type byte (startup): its body.
    ///
    /// # Errors
    /// A length that no startup packet can have.
    pub fn first_packet(&mut self) -> Result<Option<Vec<u8>>, String> {
        let rest = self.rest();
        if rest.len() < 4 {
            return Ok(None);
        }
        let length = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if !(8..=10_000).contains(&length) {
            return Err(format!("length {length} of a first packet"));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let body = rest[4..length].to_vec();
        self.read += length;
        Ok(Some(body))
    }

    /// One byte, as the answer to SSLRequest comes.
    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.rest().first()?;
        self.read += 1;
        Some(byte)
    }
}

/// The contents of an ErrorResponse or NoticeResponse.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ErrorText {
    /// Field V (or S).
    pub severity: String,
    /// The field C: the SQLSTATE.
    pub code: String,
    /// The field M: the message.
    pub message: String,
}

impl ErrorText {
    /// Reads the fields; what is missing stays empty.
    #[must_use]
    pub fn read(message: &Message) -> Self {
        let mut text = ErrorText::default();
        let mut fields = Fields(&message.body);
        while let Some(kind) = fields.byte().filter(|&k| k != 0) {
            let Some(value) = fields.text() else { break };
            match kind {
                b'S' | b'V' => text.severity = value.to_owned(),
                b'C' => text.code = value.to_owned(),
                b'M' => text.message = value.to_owned(),
                _ => {}
            }
        }
        text
    }
}

/// An ErrorResponse (`tag` E) or NoticeResponse (`tag` N).
#[must_use]
pub fn report(tag: u8, severity: &str, code: &str, text: &str) -> Message {
    Body::new()
        .byte(b'S')
        .text(severity)
        .byte(b'V')
        .text(severity)
        .byte(b'C')
        .text(code)
        .byte(b'M')
        .text(text)
        .byte(0)
        .message(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_at_every_split() {
        let sent = vec![
            report(b'E', "ERROR", "42601", "no"),
            Message::bare(b'S'),
            Body::new().int16(3).message(b'D'),
        ];
        let mut bytes = Vec::new();
        sent.iter().for_each(|m| m.encode(&mut bytes));
        for step in 1..=bytes.len() {
            let mut splitter = Splitter::default();
            let mut got = Vec::new();
            for chunk in bytes.chunks(step) {
                splitter.push(chunk);
                while let Some(message) = splitter.message().expect("lengths are right") {
                    got.push(message);
                }
            }
            assert_eq!(got, sent);
            assert!(splitter.rest().is_empty());
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for length in [0_u32, 3, 0x7fff_ffff, u32::MAX] {
            let mut splitter = Splitter::default();
            splitter.push(b"Z");
            splitter.push(&length.to_be_bytes());
            assert!(splitter.message().is_err(), "{length}");
        }
    }

    #[test]
    fn error_fields_are_read_back() {
        let text = ErrorText::read(&report(b'E', "FATAL", "53300", "too many"));
        assert_eq!(
            (text.severity.as_str(), text.code.as_str(), text.message.as_str()),
            ("FATAL", "53300", "too many")
        );
    }
}
