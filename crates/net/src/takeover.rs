//! Online restart (`-R`): the old process hands its sockets, with their state, to the new one over a unix socket.
//!
//! The new process has logged in to the old one's console and requested the takeover. From then on the two exchange
//! [`frames`]:
//!
//! 1. `Listeners`: the old process's listening sockets, its generation, and the PAUSE and DISABLE that are in force. Both
//!    processes may accept now.
//! 2. `Ready`: the new process can serve. Until here nothing has changed, and either side may stop.
//! 3. `Yours`: the old process has removed its pid file and accepts no more connections.
//! 4. `Carried`, many times: pools, clients and servers, as they become idle; `End` when nothing is left. The new process
//!    answers each with `Taken` *before* it serves the client. Until then the old one keeps its descriptors: if the new
//!    process is killed, the old one goes on serving the clients that were not taken. So no client is lost on the way, and
//!    none is served by both. Meanwhile all cancel requests arrive at the new process. It returns those for clients that it
//!    does not know with `Cancel`, because clients that cannot move are still the old one's.
//!
//! This module decides how connections travel; the machine decides which of them may.

mod frames;
mod giving;
mod taking;

pub use giving::{Giver, GivingError, Leftovers};
pub(crate) use giving::{HandoverMessage, ListenersReply, Package};
pub use taking::{Arrivals, Takeover, TakeoverError};
