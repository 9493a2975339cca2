//! The startup packet: the parameters that a client sends, and those of them that pgweir supports.

use std::sync::Arc;

use pgweir_auth::Learned;
use pgweir_settings::{CompatibleWith, SessionState};
use pgweir_wire::backend;
use pgweir_wire::startup::{StartupPacket, parse_options};

use crate::client_handoff::{Login, Replication};
use crate::context::{Cx, Env};
use crate::driver::{Driver, Level, Peer};
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::limits::{NAME_BYTES_MAX, PARAMETER_BYTES_MAX, STARTUP_PARAMETERS_MAX, USER_BYTES_MAX};
use crate::pool::Step;
use crate::pool::client::state::{peer_text, printable};
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::worker::Worker;

/// The newest minor version of protocol 3 that pgweir speaks: 3.2, with longer cancel keys.
const MINOR_NEWEST: u16 = 2;

/// The contents of a startup packet, before they are judged.
struct Said<'a> {
    database: Option<&'a [u8]>,
    user: Option<&'a [u8]>,
    options: Option<&'a [u8]>,
    replication: Replication,
    params: Params,
    session: Session,
    /// A parameter that is neither tracked nor ignored, for callers that must refuse it; and whether it was in `options`.
    strange: Option<(Vec<u8>, Vec<u8>, bool)>,
    /// The `_pq_.` options of the packet: pgweir knows none.
    extensions: Vec<&'a [u8]>,
}

impl Worker {
    /// Handles a startup packet, up to the first question of the authentication.
    pub(crate) fn startup<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        packet: &StartupPacket<'_>,
    ) -> Step {
        let said = match self.read_startup(cx.env, packet) {
            Ok(said) => said,
            Err(fault) => return self.refuse_unpooled(cx, id, &fault),
        };
        let minor = if packet.minor >= MINOR_NEWEST { MINOR_NEWEST } else { 0 };
        if packet.minor != minor || !said.extensions.is_empty() {
            cx.env.scratch.clear();
            backend::encode_negotiate(&mut cx.env.scratch, u32::from(minor), &said.extensions);
            if let Some(client) = self.unpooled.get(id) {
                cx.driver.send(client.conn, &cx.env.scratch);
            }
        }
        match self.make_login(cx, id, minor, said) {
            Ok(login) => self.begin_login(cx, id, login),
            Err(fault) => self.refuse_unpooled(cx, id, &fault),
        }
    }

    fn read_startup<'a>(&self, env: &Env, packet: &StartupPacket<'a>) -> Result<Said<'a>, Fault> {
        let mut said = Said {
            database: None,
            user: None,
            options: None,
            replication: Replication::None,
            params: Params::unknown(&env.tracked),
            session: Session::default(),
            strange: None,
            extensions: Vec::new(),
        };
        for (name, value) in packet.params() {
            match name {
                b"database" => said.database = Some(value),
                b"user" => said.user = Some(value),
                b"options" => said.options = Some(value),
                b"replication" => said.replication = replication(value)?,
                _ if name.starts_with(b"_pq_.") => said.extensions.push(name),
                _ => self.startup_parameter(env, &mut said, name, value, false)?,
            }
        }
        // A replication connection's options are its server's alone: they travel in that server's startup packet.
        if said.replication == Replication::None
            && let Some(options) = said.options
            && !self.is_ignored(env, b"options")
        {
            let parsed = parse_options(options).map_err(|error| Fault::Protocol(error.to_string().into()))?;
            let mut inside =
                Said { params: Params::unknown(&env.tracked), session: Session::default(), ..said };
            for (name, value) in &parsed {
                self.startup_parameter(env, &mut inside, name, value, true)?;
            }
            // A parameter that stands by itself takes precedence over one in `options`, as in PostgreSQL.
            said = Said {
                params: said.params.or(&inside.params),
                session: inside.session.with(&said.session),
                ..inside
            };
        } else if let Some(options) = said.options
            && said.replication == Replication::None
        {
            // `options` among the ignored: parameters that we know in it count, the rest is dropped.
            for (name, value) in parse_options(options).unwrap_or_default() {
                if let Some(position) = env.tracked.position(&name) {
                    said.params.set(position, &value);
                }
            }
        }
        Ok(said)
    }

    fn startup_parameter(
        &self,
        env: &Env,
        said: &mut Said<'_>,
        name: &[u8],
        value: &[u8],
        in_options: bool,
    ) -> Result<(), Fault> {
        let position = env.tracked.position(name);
        if !is_preferred(env, name, position) && self.is_ignored(env, name) {
            return Ok(());
        }
        if value.len() > PARAMETER_BYTES_MAX || name.len() > PARAMETER_BYTES_MAX {
            let name = printable(name);
            return Err(Fault::Protocol(format!("startup parameter {name} is too long").into()));
        }
        if let Some(position) = position {
            said.params.set(position, value);
            return Ok(());
        }
        said.strange.get_or_insert_with(|| (name.to_vec(), value.to_vec(), in_options));
        if said.session.settings().count() >= STARTUP_PARAMETERS_MAX {
            return Err(Fault::Protocol("there are too many startup parameters".into()));
        }
        said.session.set(name, value);
        Ok(())
    }

    /// Refuses a parameter that is neither tracked nor ignored, if sessions are not kept: silently dropping it would change the meaning of
    /// statements.
    fn refuse_strange<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        said: &Said<'_>,
        database: &str,
        user: &str,
    ) -> Result<(), Fault> {
        let Some((name, value, in_options)) = &said.strange else { return Ok(()) };
        let config = &cx.env.rules.config;
        let state = match config.database(database) {
            Some(found) => config.session_state(&found, found.user.as_deref().unwrap_or(user)),
            None => config.main.session_state,
        };
        if state != SessionState::Pgbouncer {
            return Ok(());
        }
        let name = printable(name);
        cx.log(Level::Warning, &format!("unsupported startup parameter: {name}={}", printable(value)));
        Err(if *in_options { Fault::UnsupportedOption(name) } else { Fault::UnsupportedParameter(name) })
    }

    fn is_ignored(&self, env: &Env, name: &[u8]) -> bool {
        let ignored = &env.rules.config.main.ignore_startup_parameters;
        ignored.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name))
    }

    fn make_login<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        minor: u16,
        said: Said<'_>,
    ) -> Result<Login, Fault> {
        let user = said.user.filter(|user| !user.is_empty()).ok_or(Fault::NoUser)?;
        let user = name("username", user, USER_BYTES_MAX)?;
        let database = match said.database.filter(|database| !database.is_empty()) {
            Some(database) => name("database name", database, NAME_BYTES_MAX)?,
            None => Arc::clone(&user),
        };
        self.refuse_strange(cx, &said, &database, &user)?;
        let mut params = said.params;
        if cx.env.rules.config.main.application_name_add_host {
            self.add_host(cx.env, id, &mut params);
        }
        Ok(Login {
            database,
            user,
            params,
            session: said.session,
            minor,
            replication: said.replication,
            options: said.options.filter(|_| said.replication != Replication::None).map(Arc::from),
            learned: Learned::Nothing,
        })
    }

    /// Appends the client's address to its `application_name` (`application_name_add_host`).
    fn add_host(&self, env: &Env, id: UnpooledId, params: &mut Params) {
        let Some(client) = self.unpooled.get(id) else { return };
        let Some(position) = env.tracked.position(b"application_name") else { return };
        let name = params.get(position).map_or_else(|| "app".into(), String::from_utf8_lossy);
        let host = match &client.origin.peer {
            Peer::Tcp { .. } => peer_text(&client.origin.peer),
            Peer::Unix { pid, port, .. } => format!("unix({pid}):{port}"),
        };
        let full = format!("{name} - {host}");
        params.set(position, full.as_bytes());
    }
}

fn name(what: &str, bytes: &[u8], bytes_max: usize) -> Result<Arc<str>, Fault> {
    if bytes.len() > bytes_max {
        return Err(Fault::Protocol(format!("{what} too long: it has more than {bytes_max} bytes").into()));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(Fault::Protocol(format!("{what} is not valid UTF-8").into())),
    }
}

/// Reads the value of `replication` as PostgreSQL's ProcessStartupPacket does: `database`, or a boolean.
fn replication(value: &[u8]) -> Result<Replication, Fault> {
    let is = |word: &[u8]| value.eq_ignore_ascii_case(word);
    if is(b"database") {
        Ok(Replication::Logical)
    } else if [&b"true"[..], b"on", b"yes", b"1", b"t", b"y"].into_iter().any(is) {
        Ok(Replication::Physical)
    } else if [&b"false"[..], b"off", b"no", b"0", b"f", b"n"].into_iter().any(is) {
        Ok(Replication::None)
    } else {
        Err(Fault::Protocol(
            format!("invalid value for parameter \"replication\": \"{}\"", printable(value)).into(),
        ))
    }
}

/// Returns whether the client's value of a parameter counts although `ignore_startup_parameters` names it; `tracked` is the parameter's
/// place among those that are tracked. PgBouncer 1.25 prefers each tracked parameter. 1.26.1 prefers `application_name` alone, because it
/// tracks `search_path` without being told to, which many configurations ignore.
fn is_preferred(env: &Env, name: &[u8], tracked: Option<usize>) -> bool {
    match env.rules.config.main.compatible_with {
        CompatibleWith::V1_25 => tracked.is_some(),
        CompatibleWith::V1_26 => name.eq_ignore_ascii_case(b"application_name"),
    }
}
