//! Pgpool-II's configuration, for comparisons: what it needs to do a pooler's work for one server, and nothing else.
//!
//! It has a process for each client it serves at the same time, and each keeps its own server connection (`max_pool = 1`): a
//! pool in PgBouncer's sense does not exist. So there are as many as there are clients. With fewer, those that are left over
//! wait in the listener's queue until other clients have gone, and pgbench, which waits for a connection without looking at its
//! other connections, would wait forever.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::error::BenchError;
use crate::processes::process;
use crate::processes::scratch::Scratch;
use crate::servers::pooler::PoolerOptions;
use pgweir_client::Login;

/// For the tools' own logins while a load's clients have all other connections.
pub(crate) const SPARE_CHILDREN: u32 = 2;

/// Writes its files into `folder` and gives the command that starts it in the foreground.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn prepare(
    program: &Path,
    port: u16,
    folder: &Path,
    options: &PoolerOptions,
    server: &Login,
    scratch: &Scratch,
) -> Result<Command, BenchError> {
    let conf = folder.join("pgpool.conf");
    let hba = folder.join("pool_hba.conf");
    let pcp = folder.join("pcp.conf");
    scratch.write(&conf, &conf_text(port, folder, options, server))?;
    scratch.write(&hba, &format!("host all all 127.0.0.1/32 {}\n", options.entry.name()))?;
    scratch.write(&pcp, "")?;
    let password = server.password().map(|password| String::from_utf8_lossy(password.as_bytes()));
    let users = format!("{}:TEXT{}\n", server.user, password.unwrap_or_default());
    scratch.write(&folder.join("pool_passwd"), &users)?;
    let mut command = process::service_command(program);
    scratch.run_as().apply(&mut command);
    command.arg("-n").arg("-f").arg(conf).arg("-a").arg(hba).arg("-F").arg(pcp).current_dir("/");
    Ok(command)
}

/// `raw`: one server, no replication, no load balancing, so that no statement is looked at for the sake of these. What
/// would do other work in the background (health checks, replication checks) is off by default there.
fn conf_text(port: u16, folder: &Path, options: &PoolerOptions, server: &Login) -> String {
    let (host, server_port) = server.address.host_and_port();
    let folder = folder.display().to_string();
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let settings = [
        ("backend_clustering_mode", quoted("raw")),
        ("listen_addresses", quoted("127.0.0.1")),
        ("port", port.to_string()),
        ("socket_dir", quoted(&folder)),
        ("pcp_listen_addresses", quoted("")),
        // With no address it only names a unix socket.
        ("pcp_port", port.saturating_add(1).to_string()),
        ("pcp_socket_dir", quoted(&folder)),
        ("backend_hostname0", quoted(&host)),
        ("backend_port0", server_port),
        ("num_init_children", (options.clients + SPARE_CHILDREN).to_string()),
        ("max_pool", "1".to_owned()),
        ("connection_cache", "on".to_owned()),
        ("enable_pool_hba", "on".to_owned()),
        ("pool_passwd", quoted("pool_passwd")),
        ("pid_file_name", quoted(&format!("{folder}/pgpool.pid"))),
        ("logdir", quoted(&folder)),
        ("work_dir", quoted(&folder)),
        ("memory_cache_enabled", "off".to_owned()),
    ];
    let mut text = String::new();
    for (name, value) in settings {
        let _ = writeln!(text, "{name} = {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgweir_client::Address;

    #[test]
    fn there_are_as_many_processes_as_clients() {
        let server = Login::trusted(Address::Loopback(5432), "bench", "bench", "direct");
        let options = PoolerOptions { pool_size: 10, clients: 200, ..PoolerOptions::default() };
        let text = conf_text(6432, Path::new("/f"), &options, &server);
        assert!(text.contains("\nnum_init_children = 202\nmax_pool = 1\n"));
        assert!(text.contains("backend_hostname0 = '127.0.0.1'\nbackend_port0 = 5432\n"));
    }
}
