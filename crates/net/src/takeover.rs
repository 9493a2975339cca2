//! Online restart (`-R`): the old process gives its sockets, and what it knows of them, to the new one over a unix socket.
//!
//! The new process has logged in to the old one's console and asked for it; from then on both speak in [`frames`]:
//!
//! 1. `Doors`: the old one's listening sockets, its generation, and what PAUSE and DISABLE are in force. Both may accept now.
//! 2. `Ready`: the new one can serve. Until here nothing has changed, and either side may break off.
//! 3. `Yours`: the old one has removed its pid file and accepts no more connections.
//! 4. `Carried`, many times: pools, clients, servers, as they come to rest; `End` when nothing is left. The new one answers each with `Taken`
//!    *before* it serves the client. Until then the old one keeps its descriptors: if the new process is killed, the old one serves on
//!    what was not taken. So no client is lost on the way, and none is served by both. Meanwhile the new one, at whose door all cancel
//!    requests arrive, sends back with `Cancel` what it does not know: clients that cannot travel are the old one's.
//!
//! Here is how it travels; what may travel is the machine's affair.

mod frames;
mod giving;
mod taking;

pub use giving::{Giver, GivingError, Leftovers};
pub(crate) use giving::{ListenersReply, Package, Parting};
pub use taking::{Arrivals, Takeover, TakeoverError};
