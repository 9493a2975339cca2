//! The data plane as a whole, with a hostile client or a hostile server.
//!
//! The input is a program of steps for a small world: one machine, some clients, some servers. One side is hostile and
//! says what the input says; the other keeps to the protocol. Nothing may panic, everybody is sent whole messages only,
//! and when all have left, nothing is still counted.

mod phrases;
mod postgres;
mod recorder;
mod rules;
mod world;

use pgweir_core::driver::Closed;
use recorder::Side;
use world::World;

/// Connections of the hostile side that a step can name.
const NAMED: usize = 4;

/// Bytes of clients, before and after login.
///
/// The first byte selects the configuration. The clients 0 and 1 have sent their startup packets, 2 and 3 have not.
/// Then come steps, whose first byte has the step in its upper half and mostly a connection in its two lowest bits:
///
/// | byte | step |
/// |---|---|
/// | `00`-`7f` | bytes arrive: their number (one byte; two if `04` is set), and the bytes. With `40`, the turn goes on |
/// | `80`-`8f` | the hostile side hangs up; with `04`, the connection breaks |
/// | `90`-`9f` | time passes: 10 ms, 20 ms, 40 ms, ... |
/// | `a0`-`af` | the other side says something: the next byte is the number of a phrase, or lets the servers answer |
/// | `b0`-`bf` | a peer reads no more (with `04`: reads again); with `08`, it is a server |
/// | `c0`-`cf` | the other side hangs up; with `04`, connections cannot be opened from here on; with `08`, they can |
/// | `d0`-`df` | something is typed on the console: the next byte is the number of a command |
/// | `e0`-`ef` | servers answer only when they are told to (with `04`: at once again) |
pub fn machine_client(data: &[u8]) {
    run(data, Side::Client);
}

/// Bytes of servers, during login and while clients have sent statements. The input is as in [`machine_client`], with
/// the roles reversed: servers say what the input says, and clients have phrases. A step lets a server answer as it should.
pub fn machine_server(data: &[u8]) {
    run(data, Side::Server);
}

fn run(data: &[u8], hostile: Side) {
    let Some((&selector, steps)) = data.split_first() else { return };
    let mut world = World::new(selector, hostile);
    let mut input = Input(steps);
    while let Some(step) = input.byte() {
        take(&mut world, step, &mut input, hostile);
    }
    world.end();
}

fn take(world: &mut World, step: u8, input: &mut Input<'_>, hostile: Side) {
    let which = usize::from(step) % NAMED;
    let (four, eight) = (step & 4 != 0, step & 8 != 0);
    match step >> 4 {
        0..=7 => {
            let len = if four { input.word() } else { input.byte().map(usize::from) };
            let bytes = input.bytes(len.unwrap_or(0));
            world.says(hostile, which, bytes);
            if step & 0x40 != 0 {
                return;
            }
        }
        8 => world.hangs_up(
            hostile,
            which,
            if four { Closed::Broken("reset".to_owned()) } else { Closed::Eof },
        ),
        9 => world.time_passes(10_000 << (step & 15)),
        10 => match (hostile, input.byte()) {
            (Side::Server, Some(phrase)) if !eight => world.client_says(which, phrase),
            _ => world.server_answers(which),
        },
        11 => world.stalls(if eight { Side::Server } else { Side::Client }, which, !four),
        12 if four || eight => world.network_is_down = four,
        12 => world.hangs_up(other(hostile), which, Closed::Eof),
        13 => world.typed(input.byte().unwrap_or(0)),
        14 => world.servers_answer = four,
        _ => {}
    }
    world.turn();
}

fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn word(&mut self) -> Option<usize> {
        Some(usize::from(u16::from_be_bytes([self.byte()?, self.byte()?])))
    }

    /// So many bytes, or what is left.
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
