//! Replies: their bodies, and the headers that all of them have.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

/// The body of a reply: whole, or in pieces as they come.
pub(super) enum Content {
    Whole(Option<Bytes>),
    Pieces(Receiver<Bytes>),
}

pub(super) type Reply = Response<Content>;

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Pieces(pieces) => {
                pieces.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Whole(None))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Content::Whole(bytes) => {
                hyper::body::SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Content::Pieces(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request cannot be understood; the text says why.
    Bad(String),
    /// The reader must sign in.
    SignIn,
    /// The user or the password is wrong.
    WrongPassword,
    /// The reader may not do this.
    Forbidden(&'static str),
    /// The address does not exist.
    NotFound(&'static str),
    /// The address does not take this method; the text lists those it takes.
    Method(&'static str),
    /// The request is larger than allowed.
    TooLarge,
    /// The command failed.
    Failed(String),
    /// Too many attempts; the number of seconds after which the client may try again.
    SlowDown(u64),
    /// A worker did not answer, or there are too many streams.
    Unavailable(&'static str),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Bad(_) => StatusCode::BAD_REQUEST,
            Refusal::SignIn | Refusal::WrongPassword => StatusCode::UNAUTHORIZED,
            Refusal::Forbidden(_) => StatusCode::FORBIDDEN,
            Refusal::NotFound(_) => StatusCode::NOT_FOUND,
            Refusal::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Failed(_) => StatusCode::CONFLICT,
            Refusal::SlowDown(_) => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Refusal::Bad(_) => "bad_request",
            Refusal::SignIn => "sign_in",
            Refusal::WrongPassword => "wrong_password",
            Refusal::Forbidden(_) => "forbidden",
            Refusal::NotFound(_) => "not_found",
            Refusal::Method(_) => "method_not_allowed",
            Refusal::TooLarge => "too_large",
            Refusal::Failed(_) => "failed",
            Refusal::SlowDown(_) => "slow_down",
            Refusal::Unavailable(_) => "unavailable",
        }
    }

    fn message(&self) -> String {
        match self {
            Refusal::Bad(text) | Refusal::Failed(text) => text.clone(),
            Refusal::SignIn => "Sign in as one of stats_users or admin_users.".to_owned(),
            Refusal::WrongPassword => "Wrong user or password.".to_owned(),
            Refusal::Forbidden(text) | Refusal::NotFound(text) | Refusal::Unavailable(text) => {
                (*text).to_owned()
            }
            Refusal::Method(others) => format!("This address takes other methods: {others}."),
            Refusal::TooLarge => "The request is too large.".to_owned(),
            Refusal::SlowDown(seconds) => format!("Too many failed attempts; try again in {seconds} s."),
        }
    }

    /// Returns the reply. `challenge`: announce basic authentication, which makes browsers ask for a
    /// password.
    pub(super) fn reply(&self, challenge: bool) -> Reply {
        let value = json!({ "error": { "code": self.code(), "message": self.message() } });
        let mut reply = json_reply(self.status(), &value);
        let headers = reply.headers_mut();
        if challenge && self.status() == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Basic realm=\"pgweir\", charset=\"UTF-8\"");
            headers.insert(hyper::header::WWW_AUTHENTICATE, realm);
        }
        match self {
            Refusal::SlowDown(seconds) => {
                headers.insert(hyper::header::RETRY_AFTER, HeaderValue::from(*seconds));
            }
            Refusal::Method(others) => {
                headers.insert(hyper::header::ALLOW, HeaderValue::from_static(others));
            }
            _ => {}
        }
        reply
    }
}

/// Returns a reply with a whole body.
pub(super) fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Content::Whole(Some(body.into())));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    reply
}

/// Returns a reply in JSON.
pub(super) fn json_reply(status: StatusCode, value: &Value) -> Reply {
    reply(status, "application/json", value.to_string())
}

/// Returns a reply in pieces.
pub(super) fn pieces(kind: &'static str, pieces: Receiver<Bytes>) -> Reply {
    let mut reply = reply(StatusCode::OK, kind, "");
    *reply.body_mut() = Content::Pieces(pieces);
    reply
}
