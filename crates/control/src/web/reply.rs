//! Answers: their bodies, and the headers that all of them have.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

/// A body: whole, or in pieces as they come.
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

/// Why a request is not answered as it was meant to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not understood; says how.
    Bad(String),
    /// The reader must sign in.
    SignIn,
    /// Wrong name or password.
    WrongPassword,
    /// The reader has no right to it.
    Forbidden(&'static str),
    /// There is no such thing.
    NotFound(&'static str),
    /// Not by this method, but by these.
    Method(&'static str),
    /// It is larger than it may be.
    TooLarge,
    /// The command failed.
    Failed(String),
    /// Too many attempts; try again after so many seconds.
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

    /// The answer. `challenge`: say that basic authentication is taken, which makes browsers ask for it.
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

/// A whole answer.
pub(super) fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Content::Whole(Some(body.into())));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    reply
}

/// An answer in JSON.
pub(super) fn json_reply(status: StatusCode, value: &Value) -> Reply {
    reply(status, "application/json", value.to_string())
}

/// An answer in pieces.
pub(super) fn pieces(kind: &'static str, pieces: Receiver<Bytes>) -> Reply {
    let mut reply = reply(StatusCode::OK, kind, "");
    *reply.body_mut() = Content::Pieces(pieces);
    reply
}
