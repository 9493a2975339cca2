//! The connections of the HTTP server: accepts them, with TLS if it is configured, and serves HTTP/1.1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pgweir_core::driver::Level;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::connection_slots::ConnectionSlot;
use crate::web::WebState;
use crate::web::limits::{HEAD_BYTES_MAX, RECEIVE_S_MAX, SEND_S_MAX};
use crate::web::route::route;

/// Accepts and serves connections from a socket, until the process ends.
pub(in crate::web) async fn serve(web: Rc<WebState>, listener: TcpListener) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely descriptors have run out, and the pooler's clients need them more.
                web.log.write(Level::Warning, &format!("HTTP server: could not accept: {error}"));
                sleep(RECEIVE_S_MAX / 10).await;
                continue;
            }
        };
        let (web, slot) = (Rc::clone(&web), web.slots.take());
        tokio::task::spawn_local(async move {
            tokio::select! {
                () = serve_connection(web, stream, from, &slot) => {}
                () = slot.lost() => {}
            }
        });
    }
}

/// Serves a connection to its end.
async fn serve_connection(web: Rc<WebState>, stream: TcpStream, from: SocketAddr, slot: &ConnectionSlot) {
    let stream = slot.watch(stream, SEND_S_MAX);
    let acceptor = web.tls.borrow().acceptor();
    match acceptor {
        None => serve_http(web, stream, from, slot).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = timeout(RECEIVE_S_MAX, acceptor.accept(stream)).await {
                serve_http(web, stream, from, slot).await;
            }
        }
    }
}

async fn serve_http<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    web: Rc<WebState>,
    stream: S,
    from: SocketAddr,
    slot: &ConnectionSlot,
) {
    let request_mark = slot.request_mark();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        let (web, request_mark) = (Rc::clone(&web), request_mark.clone());
        async move {
            let is_whole = request.body().is_end_stream();
            let reply = route(&web, request);
            Ok::<_, Infallible>(if is_whole { request_mark.answered(reply).await } else { reply.await })
        }
    });
    // A peer that breaks the protocol or disconnects ends its connection, and nothing else. A peer that has
    // closed its direction still gets its answer.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(RECEIVE_S_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
