//! The messages between the two processes of an online restart: a tag, a length, a body, and sockets beside
//! the tag (SCM_RIGHTS, unix(7)).

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// The kind of a frame. Frames have the shape of PostgreSQL's messages, so that an error of the console can
/// be recognized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    Listeners = b'd' as isize,
    Ready = b'r' as isize,
    Yours = b'y' as isize,
    Carried = b'c' as isize,
    /// From the new process: it is about to serve the oldest `Carried` that it has not acknowledged yet.
    Taken = b't' as isize,
    End = b'e' as isize,
    /// From the new process: the key of a cancel request, for a client that may have stayed.
    Cancel = b'k' as isize,
    /// ErrorResponse: the old process does not know the request, or refuses it.
    Refused = b'E' as isize,
}

/// The maximum number of sockets in one frame: all that a process listens on, or the two of a linked pair.
const SOCKETS_MAX: usize = 64;
/// The maximum size of a body. A client's unread bytes and its prepared statements are bounded, and so must
/// this buffer be.
const BODY_BYTES_MAX: usize = 1 << 30;
const HEADER_BYTES: usize = 5;

/// The body of `Ready` if the new process sends a [`Tag::Taken`] for each [`Tag::Carried`], and of `Yours` if
/// the old one expects that. A process of an older version sends neither.
pub(super) const ACKNOWLEDGES: &[u8] = &[1];

/// A frame that was received.
pub(super) struct Frame {
    pub(super) tag: Tag,
    pub(super) body: Vec<u8>,
    pub(super) sockets: Vec<OwnedFd>,
}

impl Tag {
    const ALL: [Tag; 8] = [
        Tag::Listeners,
        Tag::Ready,
        Tag::Yours,
        Tag::Carried,
        Tag::Taken,
        Tag::End,
        Tag::Cancel,
        Tag::Refused,
    ];

    fn of(byte: u8) -> Option<Tag> {
        Tag::ALL.into_iter().find(|&tag| tag as u8 == byte)
    }
}

/// Sends a frame. It blocks until there is room.
pub(super) fn write(
    mut stream: &UnixStream,
    tag: Tag,
    body: &[u8],
    sockets: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let too_much = || io::Error::new(io::ErrorKind::InvalidInput, "too much for one frame");
    let length = u32::try_from(body.len() + 4).map_err(|_| too_much())?;
    if sockets.len() > SOCKETS_MAX {
        return Err(too_much());
    }
    let mut header = [tag as u8; HEADER_BYTES];
    header[1..].copy_from_slice(&length.to_be_bytes());
    let raw: Vec<RawFd> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let sent =
        sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&header)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    stream.write_all(&header[sent..])?;
    stream.write_all(body)
}

/// Waits for a frame. The end of the stream is an error.
pub(super) fn read(mut stream: &UnixStream) -> io::Result<Frame> {
    let mut header = [0; HEADER_BYTES];
    // Sockets arrive with the first byte of a frame, so this read must not begin inside one.
    let (got, sockets) = receive_with_sockets(stream, &mut header)?;
    if got == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut header[got..])?;
    let bad = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    let [tag, length @ ..] = header;
    let tag = Tag::of(tag).ok_or_else(|| bad("an unknown frame"))?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let length = length.checked_sub(4).filter(|&length| length <= BODY_BYTES_MAX);
    let length = length.ok_or_else(|| bad("a frame of an impossible length"))?;
    let mut body = Vec::new();
    if stream.take(length as u64).read_to_end(&mut body)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Frame { tag, body, sockets })
}

#[allow(unsafe_code, reason = "descriptors arrive as numbers")]
fn receive_with_sockets(stream: &UnixStream, header: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; SOCKETS_MAX]);
    let mut parts = [IoSliceMut::new(header)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = loop {
        match recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(nix::errno::Errno::EINTR) => {}
            result => break result?,
        }
    };
    let mut sockets = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY: the kernel has just made these descriptors for us, and no other code knows their numbers.
            sockets.extend(numbers.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, sockets))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn sockets_travel_beside_their_frame() {
        let (here, there) = UnixStream::pair().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        write(&here, Tag::Carried, b"no socket", &[]).unwrap();
        write(&here, Tag::Carried, b"", &[one.as_fd()]).unwrap();
        drop(one);
        let first = read(&there).unwrap();
        assert_eq!((first.tag, &*first.body, first.sockets.len()), (Tag::Carried, &b"no socket"[..], 0));
        let mut second = read(&there).unwrap();
        let mut one = UnixStream::from(second.sockets.pop().unwrap());
        one.write_all(b"through the copy").unwrap();
        drop(one);
        let mut got = String::new();
        (&other).read_to_string(&mut got).unwrap();
        assert_eq!(got, "through the copy");
    }

    #[test]
    fn nonsense_and_the_end_are_errors() {
        for bytes in [&b""[..], b"c", b"c\0\0\0\x09abc", b"z\0\0\0\x04", b"c\0\0\0\x03", b"c\xff\xff\xff\xff"]
        {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(bytes).unwrap();
            drop(here);
            assert!(read(&there).is_err(), "{bytes:?}");
        }
    }
}
