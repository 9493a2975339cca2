//! The nodes of a cluster, as a running pooler's console shows them, or else as the configuration file lists them. Also the commands
//! to the console that change what a node takes part in.

use std::path::Path;

use pgweir_client::Client;
use pgweir_settings::{Config, Discovery};

use super::options::Wanted;
use crate::check;
use crate::operate::ctl::{self, CONFIG, Failure, Way};

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) port: u16,
    /// The state that the console shows; empty without a console.
    pub(super) state: String,
}

impl Member {
    /// The node as steps name it.
    pub(super) fn place(&self) -> String {
        format!("{} ({}:{})", self.name, self.host, self.port)
    }
}

/// The nodes of a cluster, and the console that knows them.
pub(super) struct Members {
    /// How pgweir finds the nodes: the word of `discovery`.
    pub(super) discovery: String,
    pub(super) list: Vec<Member>,
    /// The primary that the console shows.
    pub(super) primary: Option<String>,
    /// `None`: no pooler runs with this configuration, or its console cannot be entered.
    console: Option<Client>,
    /// Why there is no console.
    pub(super) no_console: String,
}

impl Members {
    /// Looks at the cluster.
    ///
    /// # Errors
    /// There is no such cluster, or neither a console nor a file.
    pub(super) fn look(wanted: &Wanted) -> Result<Members, String> {
        let way =
            Way { url: wanted.url.as_deref(), config: wanted.config.as_deref(), overlay: &wanted.overlay };
        let why = match way.enter_to_command("pgweir node") {
            Ok((console, _)) => return of_console(console, &wanted.cluster),
            Err(why) => why,
        };
        let file = wanted.config.as_deref().unwrap_or(Path::new(CONFIG));
        if wanted.url.is_some() || !file.exists() {
            return Err(format!(
                "{why}; say where the cluster's configuration or console is, with -c or --url"
            ));
        }
        let config = check::examine(file, &wanted.overlay).1.config;
        of_file(&config, &wanted.cluster, why)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Member> {
        self.list.iter().find(|member| member.name == name)
    }

    pub(super) fn has_console(&self) -> bool {
        self.console.is_some()
    }

    /// Sends `ATTACH`, `DRAIN` or `DETACH` for a node, and waits for the effect.
    pub(super) fn switch(&mut self, verb: &'static str, wanted: &Wanted) -> Result<(), String> {
        let console = self.console.as_mut().expect("callers have asked for a console");
        let name = ctl::quoted(&wanted.full_name());
        let text = |failure: Failure| match failure {
            Failure::Refused(error) => error.message,
            Failure::Lost(why) | Failure::Late(why) => why,
        };
        console.answer(&format!("{verb} NODE {name}")).map_err(|error| text(error.into()))?;
        ctl::wait_for_node(console, verb, &wanted.cluster, &wanted.node, wanted.timeout).map_err(text)
    }
}

fn of_console(mut console: Client, cluster: &str) -> Result<Members, String> {
    let lost = |failure| match failure {
        Failure::Refused(error) => error.message,
        Failure::Lost(why) | Failure::Late(why) => why,
    };
    let clusters = ctl::rows(&mut console, "SHOW CLUSTERS").map_err(lost)?;
    let Some(row) = clusters.iter().find(|row| row("cluster") == cluster) else {
        let names: Vec<String> = clusters.iter().map(|row| row("cluster")).collect();
        return Err(format!("the pooler has no cluster {cluster:?}; it has: {}", listed(&names)));
    };
    let primary = Some(row("primary")).filter(|name| !name.is_empty());
    let discovery = row("discovery");
    let nodes = ctl::rows(&mut console, "SHOW NODES").map_err(lost)?;
    let of_cluster = nodes.iter().filter(|row| row("cluster") == cluster);
    let list = of_cluster.filter_map(|row| {
        let port = row("port").parse().ok()?;
        Some(Member { name: row("node"), host: row("host"), port, state: row("state") })
    });
    let list = list.collect();
    Ok(Members { discovery, list, primary, console: Some(console), no_console: String::new() })
}

fn of_file(config: &Config, cluster: &str, why: String) -> Result<Members, String> {
    let Some(options) = config.clusters.get(cluster) else {
        let names: Vec<String> = config.clusters.keys().map(ToString::to_string).collect();
        return Err(format!("the configuration has no cluster {cluster:?}; it has: {}", listed(&names)));
    };
    let is_list = matches!(options.discovery, Discovery::Sql);
    let member = |(name, node): (&str, &pgweir_settings::NodeOptions)| Member {
        name: name.to_owned(),
        host: node.host.clone(),
        port: node.port,
        state: String::new(),
    };
    let list: Vec<Member> = config.nodes_of_cluster(Some(options)).map(member).collect();
    if options.discovery == Discovery::Dns || (is_list && list.is_empty()) {
        return Err(format!("the nodes of {cluster} are known to a running pooler only: {why}"));
    }
    let discovery = options.discovery.as_str().to_owned();
    Ok(Members { discovery, list, primary: None, console: None, no_console: why })
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, cluster: &str) -> Result<Members, String> {
        let config = Config::load("t.ini", &mut |_| Ok(text.to_owned())).expect("a good file");
        of_file(&config, cluster, "no console".to_owned())
    }

    #[test]
    fn a_file_lists_nodes() {
        let text = "[pgbouncer]\nlisten_port = 7000\n[nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2 port=5433\n\
                    [clusters]\nmain = nodes=m1,m2 check_user=c\neast = discovery=dns host=db check_user=c\n";
        let members = of(text, "main").expect("it is there");
        assert_eq!(
            members.list.iter().map(Member::place).collect::<Vec<_>>(),
            ["m1 (10.0.0.1:5432)", "m2 (10.0.0.2:5433)"]
        );
        assert!(!members.has_console() && members.get("m3").is_none() && members.discovery == "sql");
        assert!(of(text, "east").is_err_and(|why| why.contains("running pooler")));
        assert!(of(text, "west").is_err_and(|why| why.contains("main") && why.contains("east")));
    }
}
