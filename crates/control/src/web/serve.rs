//! Connections: accepted, TLS where it is spoken, HTTP/1.1.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use pgweir_core::driver::Level;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::House;
use super::limits::{CONNECTIONS_MAX, HEAD_BYTES_MAX, RECEIVE_S_MAX};
use super::route::route;

/// Serves what connects to a socket, until the process ends.
pub(super) async fn serve(house: Rc<House>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, mostly: clients of the pooler need them more.
                house.log.write(Level::Warning, &format!("HTTP server: could not accept: {error}"));
                sleep(RECEIVE_S_MAX / 10).await;
                continue;
            }
        };
        let house = Rc::clone(&house);
        tokio::task::spawn_local(async move {
            let acceptor = house.tls.borrow().acceptor();
            match acceptor {
                None => talk(house, stream).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) = timeout(RECEIVE_S_MAX, acceptor.accept(stream)).await {
                        talk(house, stream).await;
                    }
                }
            }
            drop(place);
        });
    }
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + 'static>(house: Rc<House>, stream: S) {
    let service = service_fn(move |request| {
        let house = Rc::clone(&house);
        async move { Ok::<_, Infallible>(route(&house, request).await) }
    });
    // A peer that breaks the protocol or leaves ends its connection, and nothing else.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(RECEIVE_S_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
