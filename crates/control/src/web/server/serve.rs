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
use crate::web::House;
use crate::web::limits::{HEAD_BYTES_MAX, RECEIVE_S_MAX, SEND_S_MAX};
use crate::web::route::route;

/// Accepts and serves connections from a socket, until the process ends.
pub(in crate::web) async fn serve(house: Rc<House>, listener: TcpListener) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely descriptors have run out, and the pooler's clients need them more.
                house.log.write(Level::Warning, &format!("HTTP server: could not accept: {error}"));
                sleep(RECEIVE_S_MAX / 10).await;
                continue;
            }
        };
        let (house, slot) = (Rc::clone(&house), house.slots.take());
        tokio::task::spawn_local(async move {
            tokio::select! {
                () = attend(house, stream, from, &slot) => {}
                () = slot.lost() => {}
            }
        });
    }
}

/// Serves a connection to its end.
async fn attend(house: Rc<House>, stream: TcpStream, from: SocketAddr, slot: &ConnectionSlot) {
    let stream = slot.watch(stream, SEND_S_MAX);
    let acceptor = house.tls.borrow().acceptor();
    match acceptor {
        None => talk(house, stream, from, slot).await,
        Some(acceptor) => {
            if let Ok(Ok(stream)) = timeout(RECEIVE_S_MAX, acceptor.accept(stream)).await {
                talk(house, stream, from, slot).await;
            }
        }
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    house: Rc<House>,
    stream: S,
    from: SocketAddr,
    slot: &ConnectionSlot,
) {
    let request_mark = slot.request_mark();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(from);
        let (house, request_mark) = (Rc::clone(&house), request_mark.clone());
        async move {
            let is_whole = request.body().is_end_stream();
            let reply = route(&house, request);
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
