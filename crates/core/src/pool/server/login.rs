//! Logging in to PostgreSQL: TLS, the startup packet, the proof of the pool's user, and the parameters that the server reports.

use std::sync::Arc;

use pgweir_auth::{Credential, Learned, Proof, Prover, ProverError, Secret};
use pgweir_settings::{PoolMode, ServerProtocol, SslMode};
use pgweir_wire::backend::{
    Authentication, BackendKeyData, ErrorFields, Negotiate, ParameterStatus, TxStatus, parse_ready, tag,
};
use pgweir_wire::error::SqlState;
use pgweir_wire::frontend;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver, Endpoint, Level, TlsInfo, TlsRole};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::{
    CACHED_ERROR_BYTES_MAX, GREETING_PARAMETERS_MAX, LOGIN_NOTICES_BYTES_MAX, SERVER_MESSAGE_BYTES_MAX,
};
use crate::pool::client::state::{ClientState, Link, UnnamedOnServer, printable};
use crate::pool::relay::own_settings::major_version;
use crate::pool::server::asked::AtLogin;
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::server::login_failed::LOGIN_FAILED;
use crate::pool::server::state::{Beginning, LoggingIn, ServerState, Serves};
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::pool::{Pool, Step};

impl Pool {
    /// Asks for TLS on a connection that was just opened, or logs in.
    pub(crate) fn server_connected<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, local: String) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let ServerState::Dialing(beginning) = &server.state else { return };
        let only_for = beginning.only_for;
        if self.gives_up_login(cx, id) {
            return;
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        server.at.local = local;
        server.at.remote = cx.driver.remote(server.conn);
        if cx.env.rules.config.main.log_connections && cx.driver.log_reaches_anybody(Level::Log) {
            let server = &self.servers[id];
            let from = if server.at.local.is_empty() {
                String::new()
            } else {
                format!(" (from {})", server.at.local)
            };
            let line = format!("{} new connection to server{from}", self.server_log_name(server));
            cx.log(server.log_level(Level::Log), &line);
        }
        let server = &self.servers[id];
        let over_tcp = matches!(server.at.endpoint, Endpoint::Tcp { .. });
        if over_tcp && cx.env.rules.config.main.server_tls_sslmode != SslMode::Disable {
            cx.env.scratch.clear();
            frontend::encode_ssl_request(&mut cx.env.scratch);
            cx.driver.send(server.conn, &cx.env.scratch);
            self.set_server_state(id, ServerState::SecuringTls(Beginning { only_for }));
        } else {
            self.send_startup(cx, id, only_for, None);
        }
    }

    /// Ends a login that must not go on, because this process has lost its part of a shared limit. Clients wait for the next one.
    fn gives_up_login<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id).filter(|server| self.state.lost_its_part(cx.env, server))
        else {
            return false;
        };
        let reason = "this pooler has lost its part of a shared limit";
        match server.state.client() {
            // A replication client has asked for this very connection.
            Some(_) => self.login_failed(cx, id, "login given up", reason),
            None => self.close_server(cx, id, reason, CloseMode::Now),
        }
        true
    }

    /// Handles the one byte that answers SSLRequest.
    pub(crate) fn tls_answered<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> Step {
        let Some(server) = self.servers.get(id) else { return Step::Gone };
        let only_for = server.state.client();
        match bytes {
            [b'S'] => {
                let host = match &server.at.endpoint {
                    Endpoint::Tcp { host, .. } => Arc::clone(host),
                    Endpoint::Unix { path } => Arc::clone(path),
                };
                cx.driver.start_tls(server.conn, TlsRole::Connect { host }, &[]);
                Step::Used(1)
            }
            [b'N'] => {
                let mode = cx.env.rules.config.main.server_tls_sslmode;
                if matches!(mode, SslMode::Allow | SslMode::Prefer) {
                    self.send_startup(cx, id, only_for, None);
                    return Step::Used(1);
                }
                self.login_failed(
                    cx,
                    id,
                    "server refused SSL",
                    "the server does not support SSL, but SSL is required",
                );
                Step::Gone
            }
            _ => {
                // Another party could have put plain text after the answer (CVE-2021-3935).
                self.login_failed(cx, id, "connect failed", "unexpected answer to SSLRequest");
                Step::Gone
            }
        }
    }

    /// Logs in after the TLS handshake with a server.
    pub(crate) fn server_secured<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, info: &TlsInfo) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let ServerState::SecuringTls(beginning) = &server.state else { return };
        let only_for = beginning.only_for;
        server.at.tls.clone_from(&info.description);
        if cx.env.rules.config.main.log_connections {
            let line =
                format!("{} SSL established: {}", self.server_log_name(&self.servers[id]), info.description);
            cx.log(Level::Log, &line);
        }
        self.send_startup(cx, id, only_for, info.end_point.clone());
    }

    fn send_startup<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        only_for: Option<ClientId>,
        end_point: Option<Box<[u8]>>,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        let conn = server.conn;
        let pool = &self.state;
        let database = &pool.config;
        let mut pairs: Vec<(&[u8], &[u8])> = vec![
            (b"user", pool.user.as_bytes()),
            (b"database", database.dbname.as_deref().unwrap_or(&pool.database).as_bytes()),
        ];
        let configured = [
            (&b"client_encoding"[..], &database.client_encoding),
            (b"datestyle", &database.datestyle),
            (b"timezone", &database.timezone),
            (b"application_name", &database.application_name),
        ];
        pairs.extend(configured.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?.as_bytes()))));
        let client = only_for.and_then(|client| self.clients.get(client));
        if let Some(ClientState::AwaitingServer(login)) = client.map(|client| &client.state) {
            let replication: &[u8] =
                if login.replication == Replication::Logical { b"database" } else { b"true" };
            pairs.push((b"replication", replication));
            pairs.extend(login.options.as_deref().map(|options| (&b"options"[..], options)));
            pairs.extend(login.session.settings().map(|setting| (&*setting.name, &*setting.value)));
            for (position, name) in cx.env.tracked.names().enumerate() {
                pairs.extend(login.params.get(position).map(|value| (name.as_bytes(), value)));
            }
        }
        if server.serves == Serves::Stream {
            pairs.push((b"replication", b"database"));
        }
        let opening = self.opening_for(id);
        if let Some((login, _)) = &opening {
            pairs.extend(login.session.settings().map(|setting| (&*setting.name, &*setting.value)));
            for (position, name) in cx.env.tracked.names().enumerate() {
                pairs.extend(login.params.get(position).map(|value| (name.as_bytes(), value)));
            }
        }
        let minor = match cx.env.rules.config.main.server_protocol {
            ServerProtocol::V3_2 if !pool.node_at(server.branch).speaks_only_3_0 => 2,
            _ => 0,
        };
        let mut packet = Vec::new();
        frontend::encode_startup(&mut packet, (3, minor), &pairs);
        let opened = opening.map(|(_, opened)| opened).unwrap_or_default();
        cx.driver.send(conn, &packet);
        let prover = Prover::new(&pool.user, self.credential(cx.env)).bound_to(end_point);
        let login = LoggingIn {
            only_for,
            prover: Some(prover),
            asked_newer: minor > 0,
            proven: false,
            notices: Vec::new(),
            reported: Vec::new(),
        };
        self.set_server_state(id, ServerState::LoggingIn(Box::new(login)));
        self.servers[id].opened = opened;
    }

    /// Returns the secret that proves pgweir to be the pool's user: the forced user's password, else `auth_file`, else the secret learned
    /// from the client's own login. A SCRAM verifier is no proof; the keys that a client's exchange revealed are.
    fn credential(&self, env: &Env) -> Credential {
        let pool = &self.state;
        // The password is the forced user's: `auth_user` has pools of the same database.
        if let Some(password) = &pool.config.password
            && pool.config.user.as_deref().is_none_or(|forced| *forced == *pool.user)
            && !password.reveal().is_empty()
        {
            return Credential::Secret(Secret::parse(password.reveal()));
        }
        let learned = match &pool.known.learned {
            Learned::Nothing => None,
            Learned::Password(password) => Some(Credential::Password(password.clone())),
            Learned::ScramKeys(keys) => Some(Credential::ScramKeys(keys.clone())),
            Learned::Secret(secret) => Some(Credential::Secret(secret.clone())),
        };
        match env.rules.users.get(&pool.user) {
            Some(secret @ Secret::Scram(_)) => learned.unwrap_or_else(|| Credential::Secret(secret.clone())),
            Some(secret) => Credential::Secret(secret.clone()),
            None => learned.unwrap_or(Credential::None),
        }
    }

    /// Handles a message of a server that pgweir logs in to.
    pub(crate) fn login_message<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        bytes: &[u8],
    ) -> Step {
        if self.gives_up_login(cx, id) {
            return Step::Gone;
        }
        let header = match Header::peek(bytes) {
            Ok(Some(header)) if header.total() <= SERVER_MESSAGE_BYTES_MAX => header,
            Ok(None) => return Step::Wait,
            Ok(Some(_)) | Err(_) => {
                self.login_failed(cx, id, "bad packet from server", "the server does not speak the protocol");
                return Step::Gone;
            }
        };
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else { return Step::Wait };
        let fault = match header.tag {
            tag::AUTHENTICATION => self.authentication(cx, id, body),
            tag::PARAMETER_STATUS => self.reported(id, body),
            tag::BACKEND_KEY_DATA => self.key_data(id, body),
            tag::NEGOTIATE => match Negotiate::parse(body) {
                Ok(answer) if answer.minor <= 2 => Ok(()),
                _ => Err("the server offers a protocol version that was not asked for".to_owned()),
            },
            tag::NOTICE => {
                self.login_notice(id, &bytes[..header.total()]);
                Ok(())
            }
            tag::ERROR => {
                self.login_refused(cx, id, body);
                return Step::Gone;
            }
            tag::READY => match parse_ready(body) {
                Ok(TxStatus::Idle) => {
                    if !self.logged_in(cx, id) {
                        return Step::Gone;
                    }
                    return match self.was_asked_first(id, &bytes[header.total()..]) {
                        Ok(()) => Step::Used(header.total()),
                        Err(error) => {
                            self.lose_server(cx, id, error.to_string().into());
                            Step::Gone
                        }
                    };
                }
                _ => Err("the server is not idle after login".to_owned()),
            },
            other => Err(format!("unexpected message '{}' during login", other.escape_ascii())),
        };
        match fault {
            Ok(()) if self.servers.contains_key(id) => Step::Used(header.total()),
            Ok(()) => Step::Gone,
            Err(text) => {
                self.login_failed(cx, id, LOGIN_FAILED, &text);
                Step::Gone
            }
        }
    }

    fn authentication<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        body: &[u8],
    ) -> Result<(), String> {
        let request = Authentication::parse(body).map_err(|error| error.to_string())?;
        let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
        let conn = server.conn;
        let ServerState::LoggingIn(login) = &mut server.state else { return Ok(()) };
        let Some(prover) = login.prover.take() else {
            return Err("the server asked for authentication again".to_owned());
        };
        login.asked_newer = false;
        match prover.handle(request, &mut |out: &mut [u8]| cx.driver.random(out)) {
            Proof::Reply(prover, message) => {
                login.prover = Some(prover);
                cx.driver.send(conn, &message);
            }
            Proof::Waiting(prover) => login.prover = Some(prover),
            Proof::Done => login.proven = true,
            Proof::Failed(error) => {
                if error == ProverError::WrongPasswordType {
                    self.explain_password_type(cx, body);
                }
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    /// Logs which password is missing, and where to write it: PgBouncer's text "wrong password type" does not say that.
    fn explain_password_type<D: Driver>(&self, cx: &mut Cx<'_, D>, body: &[u8]) {
        let asked = match Authentication::parse(body) {
            Ok(Authentication::Md5 { .. }) => "md5",
            Ok(Authentication::Cleartext) => "the password in plain text",
            _ => "scram-sha-256",
        };
        let (user, shortcoming) = (&self.state.user, self.credential(cx.env).shortcoming());
        let line = format!(
            "the server asks user \"{user}\" for {asked}, but {shortcoming}: write the password itself in auth_file, or password= on the \
             line of database \"{}\"",
            self.state.config.name
        );
        cx.log(Level::Warning, &line);
    }

    fn reported(&mut self, id: ServerId, body: &[u8]) -> Result<(), String> {
        let status = ParameterStatus::parse(body).map_err(|error| error.to_string())?;
        let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
        let ServerState::LoggingIn(login) = &mut server.state else { return Ok(()) };
        if login.reported.len() >= GREETING_PARAMETERS_MAX {
            return Err("the server reports too many parameters".to_owned());
        }
        login.reported.push((status.name.into(), status.value.into()));
        if status.name == b"server_version" {
            server.at.version = major_version(status.value);
        }
        Ok(())
    }

    /// Keeps a NoticeResponse of the login for the client that the server is opened for.
    fn login_notice(&mut self, id: ServerId, message: &[u8]) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let ServerState::LoggingIn(login) = &mut server.state
            && login.notices.len() + message.len() <= LOGIN_NOTICES_BYTES_MAX
        {
            login.notices.extend_from_slice(message);
        }
    }

    fn key_data(&mut self, id: ServerId, body: &[u8]) -> Result<(), String> {
        let data = BackendKeyData::parse(body).map_err(|error| error.to_string())?;
        if let Some(server) = self.servers.get_mut(id) {
            server.at.pid = data.pid;
            server.at.key = data.key.into();
        }
        Ok(())
    }

    /// Handles the ReadyForQuery of the login. Returns `false` if the server was closed.
    fn logged_in<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        let Some(server) = self.servers.get_mut(id) else { return false };
        let ServerState::LoggingIn(login) = &mut server.state else { return false };
        if !login.proven {
            self.login_failed(cx, id, LOGIN_FAILED, "the server skipped authentication");
            return false;
        }
        let (reported, only_for) = (std::mem::take(&mut login.reported), login.only_for);
        let notices = std::mem::take(&mut login.notices);
        if let Some(reason) = self.is_other_role(id, &reported) {
            self.login_failed(cx, id, "connect failed", reason);
            return false;
        }
        let mut params = Params::unknown(&cx.env.tracked);
        let mut fixed = Vec::new();
        for (name, value) in reported {
            match cx.env.tracked.position(&name) {
                Some(position) => params.set(position, &value),
                None => fixed.push((name, value)),
            }
        }
        let server = &mut self.servers[id];
        server.active_us = cx.env.now.mono_us;
        cx.env.counters.connect.record(cx.env.now.mono_us.saturating_sub(server.at.since.mono_us));
        let branch = server.branch;
        self.standby_logged_in(cx.env.now.mono_us, id);
        let server = &mut self.servers[id];
        let pool = &mut self.state;
        let node = pool.node_at_mut(branch);
        node.logged_in();
        node.failed_hosts.retain(|(failed, _)| *failed != server.at.endpoint);
        let params = pool.known.share_params(params);
        server.params = Arc::clone(&params);
        server.session = pool.known.sessions.share(Session::default());
        server.at.notices = notices;
        let login = AtLogin { fixed, params, in_doubt: false };
        match only_for {
            Some(client) => {
                let (params, session) = (Arc::clone(&login.params), Arc::clone(&server.session));
                let greeting = ServerGreeting { fixed: login.messages(), params, session, in_doubt: false };
                self.notice();
                self.link_replication(cx, id, client, &greeting);
            }
            None => match self.servers[id].serves {
                Serves::Watch => self.begin_watching(cx, id),
                Serves::Stream | Serves::Monitor => self.begin_following(id),
                Serves::Clients | Serves::ReplicationClient => self.first_statement(cx, id, login),
            },
        }
        self.servers.contains_key(id)
    }

    /// Links a replication client to its own server, which is logged in now: the two belong together from here on.
    fn link_replication<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        greeting: &ServerGreeting,
    ) {
        self.greet_client(cx, client_id, greeting, None, Some(id));
        if !self.clients.contains_key(client_id) {
            return;
        }
        // Its messages pass as they are, and no other client had this server.
        let unnamed = UnnamedOnServer::Own;
        let link = Link { unnamed, ..Link::new(id, PoolMode::Session) };
        self.set_client_state(client_id, ClientState::Linked(link));
        self.set_server_state(id, ServerState::serving(client_id));
        self.client_resume(cx, client_id);
    }

    /// Handles PostgreSQL's refusal of the login.
    fn login_refused<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, body: &[u8]) {
        let fields = ErrorFields::parse(body).ok();
        let message = fields.as_ref().and_then(ErrorFields::message).unwrap_or(b"(no message)");
        let message = printable_long(message);
        let code = fields.as_ref().and_then(ErrorFields::code).and_then(SqlState::from_bytes);
        let severity = fields.as_ref().and_then(ErrorFields::severity).unwrap_or(b"FATAL");
        let Some(server) = self.servers.get(id) else { return };
        let (only_for_replication, branch) = (server.is_replication(), server.branch);
        let remark = match &server.state {
            ServerState::LoggingIn(login) => login.prover.as_ref().and_then(Prover::remark),
            _ => None,
        };
        let remark = remark.map(|remark| format!(" ({remark})")).unwrap_or_default();
        let line = format!(
            "{} server login failed: {} {message}{remark}",
            self.server_log_name(server),
            printable(severity)
        );
        cx.log(server.log_level(Level::Warning), &line);
        let code = code.unwrap_or(SqlState::CONNECTION_FAILURE);
        if self.asks_for_less(cx, id, code) || self.refuse_opening(cx, id, code, &message) {
            return;
        }
        let goes_on = self.fail_login(cx, id, LOGIN_FAILED, &message, Some(code));
        // 57P03: starting up or shutting down. It will be there in a moment: clients that wait go on waiting.
        let waits = goes_on || code == SqlState::CANNOT_CONNECT_NOW;
        if !waits && !only_for_replication && !self.has_usable_server(branch) {
            self.refuse_waiting(cx, branch, &Fault::ServerRefused(code, message));
        }
    }

    /// Returns whether the server refused a version above 3.0 instead of naming its own (PostgreSQL before 9.3.20, 9.6.6 and 10.1, older
    /// poolers). If so, it is closed, and from here on the pool's servers are asked for 3.0.
    fn asks_for_less<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, code: SqlState) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let asked_newer = matches!(&server.state, ServerState::LoggingIn(login) if login.asked_newer);
        if !asked_newer || ![SqlState::PROTOCOL_VIOLATION, SqlState::FEATURE_NOT_SUPPORTED].contains(&code) {
            return false;
        }
        let line = format!("{} is asked for protocol 3.0 from here on", self.server_log_name(server));
        cx.log(Level::Log, &line);
        let only_for = server.state.client();
        let branch = server.branch;
        self.state.node_at_mut(branch).speaks_only_3_0 = true;
        if let Some(client) = only_for {
            self.state.queue.replicating.push_front(client);
        }
        self.close_server(cx, id, "the server does not negotiate", CloseMode::Now);
        true
    }
}

/// Returns a server's error text for a client: bounded, without control characters.
fn printable_long(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(CACHED_ERROR_BYTES_MAX)];
    String::from_utf8_lossy(shown).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
