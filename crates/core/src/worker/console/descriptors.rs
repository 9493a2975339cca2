//! SHOW FDS: every socket of this process by its number, and, for a process of our own user that asks over the unix socket, the sockets
//! themselves. Secrets (cancel keys, passwords, SCRAM keys) are not among its columns, because they are not needed here.

use pgweir_wire::backend;
use pgweir_wire::error::SqlState;

use crate::context::{Cx, Env};
use crate::driver::{Driver, Peer};
use crate::ids::UnpooledId;
use crate::pool::show::descriptors::Line;
use crate::worker::Worker;
use crate::worker::console;
use crate::worker::console::session::Reply;
use crate::worker::console::table::{self, Columns};

type Row = Vec<Option<String>>;

/// Parameters that have a column.
const SHOWN: [&[u8]; 4] = [b"client_encoding", b"standard_conforming_strings", b"DateStyle", b"TimeZone"];

impl Worker {
    /// Returns the rows of this worker's sockets; the first worker adds the listeners, which all workers share.
    pub(crate) fn descriptor_rows<D: Driver>(&self, cx: &Cx<'_, D>) -> Vec<Row> {
        let mut rows = Vec::new();
        if cx.env.worker.0 == 0 {
            for door in cx.driver.doors() {
                let line = Line {
                    descriptor: Some(door.descriptor),
                    task: "pooler",
                    user: None,
                    database: None,
                    place: door.address,
                    port: door.port,
                    link: None,
                    params: None,
                };
                rows.extend(line_row(cx.env, line));
            }
        }
        rows.extend(
            self.pools
                .values()
                .flat_map(|pool| pool.descriptor_lines(cx))
                .filter_map(|line| line_row(cx.env, line)),
        );
        rows
    }

    /// Whether this console gets the sockets: the house user, over the unix socket, by a simple query.
    pub(crate) fn gets_descriptors(&self, id: UnpooledId) -> bool {
        let Some(client) = self.unpooled.get(id) else { return false };
        let Some(console) = client.console() else { return false };
        matches!(client.origin.peer, Peer::Unix { same_user: true, .. })
            && console::is_house_name(console.user())
            && matches!(console.reply, Reply::Query)
    }

    /// Sends the answer to SHOW FDS, each row together with its socket (SCM_RIGHTS).
    pub(crate) fn say_descriptors<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        columns: &Columns,
        rows: &[Row],
    ) {
        let Some(conn) = self.unpooled.get(id).map(|client| client.conn) else { return };
        let formats = table::Formats::default();
        cx.env.scratch.clear();
        table::encode_columns(&mut cx.env.scratch, columns, &formats);
        for row in rows {
            let descriptor = row.first().and_then(|number| number.as_deref()?.parse().ok());
            // The bytes before a row leave with its socket: the description of the columns leaves with the first row.
            table::encode_row(&mut cx.env.scratch, columns, &formats, row);
            if !descriptor.is_some_and(|descriptor| cx.driver.send_beside(conn, &cx.env.scratch, descriptor))
            {
                let text =
                    "a socket could not be passed: it was closed meanwhile, or the client does not read";
                return self.say_error(cx, id, SqlState::CONFIGURATION_LIMIT_EXCEEDED, text);
            }
            cx.env.scratch.clear();
        }
        backend::encode_command_complete(&mut cx.env.scratch, "SHOW");
        self.say_ready(cx, id);
    }
}

/// Returns the row of a connection; `None` if the connection has no socket yet.
fn line_row(env: &Env, line: Line<'_>) -> Option<Row> {
    let text = |value: Option<&str>| Some(value.unwrap_or_default().to_owned());
    let mut row = vec![
        Some(line.descriptor?.to_string()),
        Some(line.task.to_owned()),
        text(line.user),
        text(line.database),
        Some(line.place.map_or_else(|| "unix".to_owned(), |place| place.ip().to_string())),
        Some(line.port.to_string()),
        Some("0".to_owned()),
        Some(line.link.unwrap_or_default().to_string()),
    ];
    for name in SHOWN {
        let value = line.params.and_then(|params| params.get(env.tracked.position(name)?));
        row.push(Some(value.map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()));
    }
    row.extend([Some(String::new()), None, None]);
    Some(row)
}
