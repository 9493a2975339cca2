//! The form in which a process hands pools, clients and servers to its successor in an online restart. Two versions of pgweir understand
//! it: fields have numbers, and an unknown field is skipped. A field that is added later must be an `Option`, as older versions do not send
//! it.
//!
//! This file is only the form. `leaving.rs` decides what may leave, and when; `arriving.rs` takes it in. The form has secrets in it: it
//! travels over a unix socket between processes of one user, and is never logged.

use std::fmt;

use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use pgweir_settings::Config;

use crate::cluster::view::Switch;
use crate::shared::Shared;

/// A unit of the handover. The sockets travel with it: the client's, then the server's.
#[derive(Encode, Decode, Clone, PartialEq, Eq)]
#[cbor(map)]
pub struct Carried {
    /// The database of the pool, as clients name it.
    #[n(0)]
    pub database: String,
    /// The user of the pool, as servers know it.
    #[n(1)]
    pub pool_user: String,
    /// The knowledge of the pool. It is sent once, before the pool's first connection.
    #[n(2)]
    pub pool: Option<CarriedPool>,
    /// A client, with its socket.
    #[n(3)]
    pub client: Option<CarriedClient>,
    /// A server, with its socket. It is linked to the client, if there is one.
    #[n(4)]
    pub server: Option<CarriedServer>,
}

/// The switches of the console, for the process as a whole. They are sent ahead of everything else: no client may find a database open in
/// the new process that is not. If nothing is switched, they are not sent at all.
#[derive(Encode, Decode, Clone, Default, PartialEq, Eq, Debug)]
#[cbor(map)]
pub struct CarriedSwitches {
    /// The databases that are paused.
    #[n(0)]
    paused: Vec<String>,
    /// The databases that are disabled.
    #[n(1)]
    disabled: Vec<String>,
    /// The operators' switches of nodes: cluster, node, switch.
    #[n(2)]
    nodes: Option<Vec<(String, String, u8)>>,
}

/// The name and value of a parameter.
pub(crate) type Pair = (String, ByteVec);

/// The knowledge of a pool.
#[derive(Encode, Decode, Clone, PartialEq, Eq)]
#[cbor(map)]
pub struct CarriedPool {
    /// The ParameterStatus messages of parameters that are not tracked, ready to be sent; empty if no server has logged in yet.
    #[n(0)]
    pub(crate) fixed: ByteVec,
    /// The tracked parameters that the pool's first server reported.
    #[n(1)]
    pub(crate) params: Vec<Pair>,
    /// The secret that logs in to servers, if a client's login has revealed one.
    #[n(2)]
    pub(crate) learned: Option<CarriedSecret>,
    /// The other settings with which the pool's clients begin, by name.
    #[n(3)]
    pub(crate) session: Option<Vec<(ByteVec, ByteVec)>>,
    /// The statements prepared by SQL with which the pool's clients begin: name and text.
    #[n(4)]
    pub(crate) prepared: Option<Vec<(ByteVec, ByteVec)>>,
    /// The settings that the pool's servers were opened with: under other settings, the fields above do not hold.
    #[n(5)]
    pub(crate) opened_by: Option<String>,
}

/// A secret that a client's login has revealed and that logs in to servers.
#[derive(Encode, Decode, Clone, PartialEq, Eq)]
pub(crate) enum CarriedSecret {
    #[n(0)]
    Password(#[n(0)] ByteVec),
    /// The hash of a password, as in `pg_authid`.
    #[n(2)]
    Hash(#[n(0)] String),
    #[n(1)]
    ScramKeys(#[n(0)] ByteVec, #[n(1)] ByteVec, #[n(2)] ByteVec, #[n(3)] u32),
}

/// The address that a client came from.
#[derive(Encode, Decode, Clone, PartialEq, Eq, Debug)]
pub(crate) enum CarriedPeer {
    /// The client's address and that of pgweir's end.
    #[n(0)]
    Tcp(#[n(0)] String, #[n(1)] String),
    /// The process id, the user id, whether that is the user of this process, and the port in the socket's name.
    #[n(1)]
    Unix(#[n(0)] u32, #[n(1)] u32, #[n(2)] bool, #[n(3)] u16),
}

/// A client.
#[derive(Encode, Decode, Clone, PartialEq, Eq)]
#[cbor(map)]
pub struct CarriedClient {
    #[n(0)]
    pub(crate) peer: CarriedPeer,
    /// The time for which the client has been connected (µs).
    #[n(1)]
    pub(crate) age_us: u64,
    /// The user that the client logged in as.
    #[n(2)]
    pub(crate) user: String,
    /// The bytes that were received, and not yet passed on.
    #[n(3)]
    pub(crate) unread: ByteVec,
    /// The values of the parameters: those that the client asked for while it is not welcomed, else those that it was told.
    #[n(4)]
    pub(crate) params: Vec<Pair>,
    /// The minor version of the protocol: 2 for the protocol with long cancel keys, else 0.
    #[n(5)]
    pub(crate) minor: u16,
    /// The kind of replication: `none`, `physical`, `logical`.
    #[n(6)]
    pub(crate) replication: String,
    /// The raw startup parameter `options` of a replication client that is not welcomed yet.
    #[n(7)]
    pub(crate) options: Option<ByteVec>,
    /// The key that the client was told for its cancel requests; `None` while it is not welcomed.
    #[n(8)]
    pub(crate) cancel_key: Option<ByteVec>,
    /// The statements that the client has prepared: name, pgweir's number in the name that servers know, text, parameter types.
    #[n(9)]
    pub(crate) statements: Vec<(ByteVec, u64, ByteVec, ByteVec)>,
    /// The number of bytes that are still to come and must be ignored.
    #[n(10)]
    pub(crate) skip: u64,
    /// The secret that logs in to servers, if the client's login has revealed one.
    #[n(11)]
    pub(crate) learned: Option<CarriedSecret>,
    /// Whether the client was linked in session pooling: the server bears a session's traces.
    #[n(12)]
    pub(crate) as_session: bool,
    /// The contents of the client's session besides the parameters, by name.
    #[n(13)]
    pub(crate) session: Vec<(ByteVec, ByteVec)>,
    /// The parameters that the client started with, if they are not those of servers.
    #[n(14)]
    pub(crate) startup: Option<Vec<(ByteVec, ByteVec)>>,
    /// The settings, by name, that the client's transaction may have changed; perhaps it has also changed others. `None` if it has changed
    /// nothing.
    #[n(15)]
    pub(crate) touched: Option<Vec<ByteVec>>,
    /// The BEGIN that the client was told to be done, and that no server knows of yet.
    #[n(16)]
    pub(crate) begun: Option<ByteVec>,
    /// The client's unnamed statement: text, parameter types.
    #[n(17)]
    pub(crate) unnamed: Option<(ByteVec, ByteVec)>,
    /// The statements that the client has prepared by SQL: name, text.
    #[n(18)]
    pub(crate) prepared: Option<Vec<(ByteVec, ByteVec)>>,
    /// Whether the unnamed statement of the client's server is the client's own.
    #[n(19)]
    pub(crate) owns_unnamed: Option<bool>,
    /// The shapes of the client's statements, as far as they are known, by pgweir's number.
    #[n(20)]
    pub(crate) shapes: Option<Vec<(u64, CarriedShape)>>,
    /// The names whose statement has another shape than the client was told, with the shape that it was told.
    #[n(21)]
    pub(crate) told: Option<Vec<(ByteVec, CarriedShape)>>,
}

/// A client's knowledge of a prepared statement.
#[derive(Encode, Decode, Clone, PartialEq, Eq)]
#[cbor(map)]
pub(crate) struct CarriedShape {
    /// The parameter types, four bytes each.
    #[n(0)]
    pub(crate) params: ByteVec,
    /// The digest of the columns; `None` if the statement has none.
    #[n(1)]
    pub(crate) columns: Option<ByteVec>,
}

/// A server that owes nothing.
#[derive(Encode, Decode, Clone, PartialEq, Eq)]
#[cbor(map)]
pub struct CarriedServer {
    /// The place of the server: its host, or the path of a unix socket.
    #[n(0)]
    pub(crate) host: String,
    /// The port; 0 for a unix socket.
    #[n(1)]
    pub(crate) port: u16,
    /// The address of pgweir's end, as text.
    #[n(2)]
    pub(crate) local: String,
    /// The process number for cancel requests.
    #[n(3)]
    pub(crate) pid: u32,
    #[n(4)]
    pub(crate) key: ByteVec,
    #[n(5)]
    pub(crate) params: Vec<Pair>,
    /// The statements that the server has prepared: pgweir's number in the name, text, parameter types.
    #[n(6)]
    pub(crate) statements: Vec<(u64, ByteVec, ByteVec)>,
    /// The time for which the server has been open (µs).
    #[n(7)]
    pub(crate) age_us: u64,
    /// The time for which the server has been unused (µs).
    #[n(8)]
    pub(crate) unused_us: u64,
    /// The transaction status as in ReadyForQuery.
    #[n(9)]
    pub(crate) tx: u8,
    /// The time for which the transaction has been open (µs); 0 if none is.
    #[n(10)]
    pub(crate) xact_us: u64,
    /// Whether the server has served a client.
    #[n(11)]
    pub(crate) used: bool,
    /// Whether the server must be closed when it is next idle.
    #[n(12)]
    pub(crate) retire: bool,
    /// The settings that the server was opened with. If the settings are others now, the server cannot be used any longer.
    #[n(13)]
    pub(crate) opened_by: String,
    /// The contents of the server's session besides the parameters, by name.
    #[n(14)]
    pub(crate) session: Vec<(ByteVec, ByteVec)>,
    /// The statements that the server's session has prepared by SQL: name, text.
    #[n(15)]
    pub(crate) prepared: Option<Vec<(ByteVec, ByteVec)>>,
    /// The primary that the server was opened to, if its database has a cluster.
    #[n(16)]
    pub(crate) term: Option<CarriedTerm>,
    /// Whether the server was opened to that node as a standby.
    #[n(17)]
    pub(crate) at_standby: Option<bool>,
    /// The shapes of the server's statements, as in [`CarriedClient::shapes`].
    #[n(18)]
    pub(crate) shapes: Option<Vec<(u64, CarriedShape)>>,
}

/// A node of a cluster as the primary, in one run.
#[derive(Encode, Decode, Clone, PartialEq, Eq, Debug)]
#[cbor(map)]
pub(crate) struct CarriedTerm {
    /// The name of the node.
    #[n(0)]
    pub(crate) node: String,
    #[n(1)]
    pub(crate) system_identifier: u64,
    #[n(2)]
    pub(crate) timeline: u32,
    /// The time at which the PostgreSQL server was started, by its own clock (µs since 1970).
    #[n(3)]
    pub(crate) started_us: i64,
}

/// The error for received bytes that no pgweir sends.
#[derive(Debug, thiserror::Error)]
#[error("the other process sent a message that cannot be read: {0}")]
pub struct CarriedError(String);

impl Carried {
    /// Encodes the unit as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing to memory does not fail")
    }

    /// Decodes a unit from bytes.
    ///
    /// # Errors
    ///
    /// [`CarriedError`] if no pgweir sends these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Carried, CarriedError> {
        minicbor::decode(bytes).map_err(|error| CarriedError(error.to_string()))
    }
}

impl CarriedSwitches {
    /// Encodes the switches in force as bytes.
    #[must_use]
    pub fn encode(shared: &Shared) -> Vec<u8> {
        let mut carried = CarriedSwitches::default();
        for (name, switches) in shared.all_switches() {
            if switches.paused {
                carried.paused.push(name.clone());
            }
            if switches.disabled {
                carried.disabled.push(name);
            }
        }
        let nodes = shared.node_switches();
        if !nodes.is_empty() {
            let numbered =
                |(cluster, node, switch): (String, String, Switch)| (cluster, node, switch.number());
            carried.nodes = Some(nodes.into_iter().map(numbered).collect());
        }
        match carried == CarriedSwitches::default() {
            true => Vec::new(),
            false => minicbor::to_vec(&carried).expect("writing to memory does not fail"),
        }
    }

    /// Decodes switches from bytes.
    ///
    /// # Errors
    ///
    /// [`CarriedError`] if no pgweir sends these bytes.
    pub fn decode(bytes: &[u8]) -> Result<CarriedSwitches, CarriedError> {
        if bytes.is_empty() {
            return Ok(CarriedSwitches::default());
        }
        minicbor::decode(bytes).map_err(|error| CarriedError(error.to_string()))
    }

    /// Puts the switches in force in this process, for the databases that exist here.
    pub fn inherit(&self, shared: &Shared, config: &Config) {
        let is_known = |name: &&String| config.database(name).is_some();
        for name in self.paused.iter().filter(is_known) {
            shared.switch(name, |switches| switches.paused = true);
        }
        for name in self.disabled.iter().filter(is_known) {
            shared.switch(name, |switches| switches.disabled = true);
        }
        for (cluster, node, number) in self.nodes.iter().flatten() {
            let is_listed = config.clusters.get(cluster).is_some_and(|cluster| {
                cluster.discovery != pgweir_settings::Discovery::Sql || cluster.nodes.contains(node)
            });
            if let Some(switch) = Switch::of_number(*number).filter(|_| is_listed) {
                shared.switch_node(cluster, node, switch);
            }
        }
    }
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (client, server) = (self.client.is_some(), self.server.is_some());
        write!(f, "Carried({}/{}, client: {client}, server: {server})", self.database, self.pool_user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> CarriedServer {
        CarriedServer {
            host: "pg".to_owned(),
            port: 5432,
            local: "10.0.0.2:5001".to_owned(),
            pid: 42,
            key: vec![1, 2, 3, 4].into(),
            params: vec![("TimeZone".to_owned(), b"UTC".to_vec().into())],
            statements: vec![(7, b"select 1".to_vec().into(), Vec::new().into())],
            age_us: 1,
            unused_us: 2,
            tx: b'T',
            xact_us: 3,
            used: true,
            retire: false,
            opened_by: "app".to_owned(),
            session: Vec::new(),
            prepared: None,
            term: Some(CarriedTerm {
                node: "m1".to_owned(),
                system_identifier: u64::MAX,
                timeline: 3,
                started_us: -1,
            }),
            at_standby: Some(true),
            shapes: Some(vec![(
                7,
                CarriedShape { params: vec![0, 0, 0, 23].into(), columns: Some(vec![9; 16].into()) },
            )]),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let carried = Carried {
            database: "app".to_owned(),
            pool_user: "alice".to_owned(),
            pool: None,
            client: None,
            server: Some(server()),
        };
        assert!(Carried::decode(&carried.encode()).expect("good") == carried);
    }

    #[test]
    fn unknown_fields_are_skipped_and_cut_ones_are_errors() {
        // {0: "app", 1: "alice", 99: [1, 2]}
        let newer = b"\xa3\x00\x63app\x01\x65alice\x18\x63\x82\x01\x02";
        let read = Carried::decode(newer).expect("a later version's");
        assert_eq!((read.database.as_str(), read.client.is_some()), ("app", false));
        for length in 0..newer.len() {
            assert!(Carried::decode(&newer[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn switches_are_inherited_for_the_databases_that_there_are() {
        let old = Shared::new(1, [0; 32]);
        assert!(CarriedSwitches::encode(&old).is_empty(), "an older version expects nothing");
        for name in ["app", "gone"] {
            old.switch(name, |switches| switches.paused = true);
        }
        old.switch("other", |switches| switches.disabled = true);
        old.switch("open", |switches| switches.disabled = false);
        old.switch_node("main", "m1", Switch::Draining);
        old.switch_node("main", "m9", Switch::Detached);
        let carried = CarriedSwitches::decode(&CarriedSwitches::encode(&old)).expect("good");
        let mut read = |_: &str| {
            let nodes = "[nodes]\nm1 = host=pg\n[clusters]\nmain = nodes=m1 check_user=c\n";
            Ok(format!("{nodes}[pgbouncer]\n[databases]\napp = host=pg\nother = host=pg\nopen = host=pg"))
        };
        let config = Config::load("t.ini", &mut read).expect("good");
        let new = Shared::new(1, [0; 32]);
        carried.inherit(&new, &config);
        assert!(new.switches("app").paused && !new.switches("app").disabled);
        assert!(new.switches("other").disabled && !new.switches("other").paused);
        assert_eq!(new.all_switches().len(), 2);
        assert_eq!(new.node_switches(), [("main".to_owned(), "m1".to_owned(), Switch::Draining)]);
        assert!(CarriedSwitches::decode(b"").expect("nothing is switched") == CarriedSwitches::default());
        assert!(CarriedSwitches::decode(b"\xff").is_err());
    }

    #[test]
    fn a_pool_of_an_older_version_is_read() {
        // {0: "app", 1: "alice", 2: {0: h'', 1: []}}
        let older = b"\xa3\x00\x63app\x01\x65alice\x02\xa2\x00\x40\x01\x80";
        let pool = Carried::decode(older).expect("an older version's").pool.expect("a pool");
        assert!(pool.session.is_none() && pool.prepared.is_none() && pool.opened_by.is_none());
    }

    #[test]
    fn secrets_are_not_shown() {
        let pool = CarriedPool {
            learned: Some(CarriedSecret::Password(b"secret".to_vec().into())),
            fixed: Vec::new().into(),
            params: Vec::new(),
            session: None,
            prepared: None,
            opened_by: None,
        };
        let carried = Carried {
            database: "app".to_owned(),
            pool_user: "alice".to_owned(),
            pool: Some(pool),
            client: None,
            server: None,
        };
        assert!(!format!("{carried:?}").contains("secret"));
    }
}
