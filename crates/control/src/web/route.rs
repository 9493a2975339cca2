//! Routes requests to their answers, and checks the reader's rights.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, SET_COOKIE};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::access::{Reader, Role, check_csrf, check_origin, no_session_cookie, session_cookie};
use super::api::query::Query;
use super::limits::{BODY_BYTES_MAX, RECEIVE_S_MAX};
use super::reply::{Refusal, Reply, json_reply, reply};
use super::{WebState, actions, api, metrics, page};

type Outcome = Result<Reply, Refusal>;

/// Answers a request.
pub(super) async fn route(web: &std::rc::Rc<WebState>, request: Request<Incoming>) -> Reply {
    let path = request.uri().path().to_owned();
    match answer(web, request, &path).await {
        Ok(reply) => reply,
        // The dashboard asks for passwords itself; a browser's own dialog would be in its way.
        Err(refusal) => refusal.reply(path == "/metrics"),
    }
}

async fn answer(web: &std::rc::Rc<WebState>, request: Request<Incoming>, path: &str) -> Outcome {
    let reading = matches!(*request.method(), Method::GET | Method::HEAD);
    match path {
        "/healthz" if reading => return Ok(api::health(web).await),
        "/readyz" if reading => {
            return api::readiness(web, request.uri().query().unwrap_or_default()).await;
        }
        "/api/v1/session" => return session(web, request).await,
        _ => {}
    }
    if let Some(file) = page::file(path).filter(|_| reading) {
        return Ok(page_reply(file));
    }
    let rules = web.rules.borrow().clone();
    let reader = web.authenticator.reader(request.headers(), address(&request), &rules)?;
    if !reader.sees_anything() {
        return Err(Refusal::SignIn);
    }
    if let Some(action) = path.strip_prefix("/api/v1/actions/") {
        // A GET must never change anything: a link on another page could send it.
        if *request.method() != Method::POST {
            return Err(Refusal::Method("POST"));
        }
        allow_change(request.headers(), &reader)?;
        if reader.role != Role::Admin {
            return Err(Refusal::Forbidden("Only users of admin_users may do this."));
        }
        let action = action.to_owned();
        let body = json_body(request).await?;
        return actions::act(web, &reader, &action, &body).await;
    }
    if !reading {
        return Err(Refusal::Method("GET, HEAD"));
    }
    if path == "/metrics" {
        let accept =
            request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        return metrics::scrape(web, &reader, accept).await;
    }
    let query = Query::parse(request.uri().query().unwrap_or_default())?;
    api::answer(web, &reader, path, &query).await
}

fn page_reply(file: page::File) -> Reply {
    let mut page = reply(StatusCode::OK, file.kind, Bytes::from_static(file.bytes));
    let headers = page.headers_mut();
    headers.insert(
        hyper::header::CACHE_CONTROL,
        HeaderValue::from_static(if file.immutable {
            "public, max-age=31536000, immutable"
        } else {
            "no-cache"
        }),
    );
    // Nothing is loaded from other sites, and no page may frame this one. Charts set the style of elements.
    let policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                  font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    headers.insert(hyper::header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(hyper::header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    page
}

/// Returns the address that the connection comes from.
fn address(request: &Request<Incoming>) -> IpAddr {
    let seen = request.extensions().get::<SocketAddr>();
    seen.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::ip)
}

/// Answers `/api/v1/session`: who am I, sign in, sign out.
async fn session(web: &WebState, request: Request<Incoming>) -> Outcome {
    let rules = web.rules.borrow().clone();
    let secure = web.tls.borrow().is_on();
    let (headers, method, from) = (request.headers().clone(), request.method().clone(), address(&request));
    let anonymous = || web.authenticator.reader(&HeaderMap::new(), from, &rules);
    match method {
        Method::GET | Method::HEAD => {
            // Wrong credentials make an anonymous reader here: this path is never refused.
            let reader = web.authenticator.reader(&headers, from, &rules).or_else(|_| anonymous())?;
            Ok(json_reply(StatusCode::OK, &api::session(&reader, &rules)))
        }
        Method::POST => {
            check_origin(&headers)?;
            check_json(&headers)?;
            let body = json_body(request).await?;
            let text = |key: &str| body.get(key).and_then(Value::as_str);
            let (Some(user), Some(password)) = (text("user"), text("password")) else {
                return Err(Refusal::Bad("\"user\" and \"password\" are needed".to_owned()));
            };
            let (reader, token) = web.authenticator.sign_in(user, password, from, &rules)?;
            let mut reply = json_reply(StatusCode::OK, &api::session(&reader, &rules));
            set_cookie(&mut reply, &session_cookie(&token, secure));
            Ok(reply)
        }
        Method::DELETE => {
            let reader = web.authenticator.reader(&headers, from, &rules)?;
            if reader.csrf.is_some() {
                allow_change(&headers, &reader)?;
            }
            web.authenticator.sign_out(&headers);
            let mut reply = json_reply(StatusCode::OK, &api::session(&anonymous()?, &rules));
            set_cookie(&mut reply, &no_session_cookie());
            Ok(reply)
        }
        _ => Err(Refusal::Method("GET, HEAD, POST, DELETE")),
    }
}

fn set_cookie(reply: &mut Reply, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        reply.headers_mut().insert(SET_COOKIE, value);
    }
}

fn allow_change(headers: &HeaderMap, reader: &Reader) -> Result<(), Refusal> {
    if reader.role == Role::Anonymous {
        return Err(Refusal::SignIn);
    }
    check_origin(headers)?;
    check_json(headers)?;
    check_csrf(headers, reader)
}

/// Requires JSON: another site's page can send forms without permission, but not JSON.
fn check_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Refusal::Bad("Content-Type must be application/json".to_owned()))
    }
}

/// Returns the request's body. No body counts as an empty object.
async fn json_body(request: Request<Incoming>) -> Result<Value, Refusal> {
    let limited = Limited::new(request.into_body(), BODY_BYTES_MAX);
    let bytes = match timeout(RECEIVE_S_MAX, limited.collect()).await {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Refusal::TooLarge),
        Ok(Err(_)) | Err(_) => return Err(Refusal::Bad("the request's body did not arrive".to_owned())),
    };
    if bytes.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::Bad(format!("the body is no JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(Refusal::Bad("the body must be a JSON object".to_owned())) }
}
