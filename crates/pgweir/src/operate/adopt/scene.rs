//! The traces of PgBouncer: its process, files, service, and the names of variables. Values of variables may be passwords, so only ports are
//! kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pgweir_settings::Config;

use super::kind::Kind;

/// The places in which packages, images and operators have the configuration file. The first that exists counts.
const CONFIGS: [&str; 6] = [
    "/controller/configs/pgbouncer.ini",
    "/etc/pgbouncer/~postgres-operator.ini",
    "/bitnami/pgbouncer/conf/pgbouncer.ini",
    "/opt/bitnami/pgbouncer/conf/pgbouncer.ini",
    "/etc/pgbouncer/pgbouncer.ini",
    "/etc/pgbouncer.ini",
];

/// The places in which systemd looks for the unit. The first that exists counts.
const UNITS: [&str; 3] = [
    "/etc/systemd/system/pgbouncer.service",
    "/usr/lib/systemd/system/pgbouncer.service",
    "/lib/systemd/system/pgbouncer.service",
];

/// The process pgbouncer.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// The words of the process's command line.
    pub(super) words: Vec<String>,
    /// The user id that it runs as.
    uid: Option<u32>,
}

/// The unit of systemd.
#[derive(Debug)]
pub(super) struct Unit {
    /// The words of `ExecStart=`.
    pub(super) start: Vec<String>,
    /// `User=`
    user: Option<String>,
}

/// The traces that were found.
#[derive(Debug)]
pub(super) struct Scene {
    root: PathBuf,
    /// The variables by their names, with the value of those that are a number such as a port.
    variables: BTreeMap<String, Option<u16>>,
    pub(super) process: Option<Process>,
    /// The configuration file, as the process knows it.
    pub(super) config: Option<String>,
    pub(super) unit: Option<Unit>,
}

impl Scene {
    /// Looks at the file system in `root`. `variables` are those of this process, if it runs there: in a container, those of its image.
    /// The variables of PgBouncer's process count as well, if this user may read them.
    pub(super) fn look(root: &Path, variables: impl Iterator<Item = (String, String)>) -> Scene {
        let process = process(root);
        let of_process = process.as_ref().map(|process| variables_of(root, process.pid)).unwrap_or_default();
        let known = variables.chain(of_process);
        let mut scene = Scene {
            root: root.to_owned(),
            variables: known.map(|(name, value)| (name, value.parse().ok())).collect(),
            process,
            config: None,
            unit: None,
        };
        scene.unit = UNITS.iter().find_map(|path| unit(&scene.text(path)?));
        let running = scene.process.as_ref().map(|process| &process.words);
        let started = running.or(scene.unit.as_ref().map(|unit| &unit.start));
        // Red Hat's unit has the name in a variable.
        let is_path = |word: &&String| !word.starts_with('-') && !word.contains('$');
        let named = started.and_then(|words| words.get(1..)?.last()).filter(is_path).cloned();
        let known = || CONFIGS.iter().find(|path| scene.has(path)).map(|path| (*path).to_owned());
        scene.config = named.or_else(known);
        scene
    }

    /// Whether there is such a file or directory.
    pub(super) fn has(&self, path: &str) -> bool {
        inside(&self.root, path).exists()
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(inside(&self.root, path)).ok()
    }

    /// Whether a variable has this name, or begins so.
    pub(super) fn has_variable(&self, name: &str) -> bool {
        match name.strip_suffix('*') {
            Some(beginning) => self.variables.keys().any(|variable| variable.starts_with(beginning)),
            None => self.variables.contains_key(name),
        }
    }

    /// Whether this is a container, as far as a process in it can tell.
    pub(super) fn is_container(&self) -> bool {
        self.has("/.dockerenv") || self.has("/run/.containerenv") || self.is_kubernetes()
    }

    /// Whether this is a pod.
    pub(super) fn is_kubernetes(&self) -> bool {
        self.has_variable("KUBERNETES_SERVICE_HOST") || self.has("/var/run/secrets/kubernetes.io")
    }

    /// The user that PgBouncer runs as: of the process, of the service, or that the configuration names.
    pub(super) fn user(&self, kind: &Kind) -> Option<String> {
        let of_process = self.process.as_ref().and_then(|process| process.uid).map(|uid| self.name_of(uid));
        let of_unit =
            || self.unit.as_ref().filter(|_| *kind == Kind::Service).and_then(|unit| unit.user.clone());
        let of_file = || self.settings().and_then(|config| config.main.user);
        of_process.or_else(of_unit).or_else(of_file)
    }

    /// The name of a user in the file system's list, with its number.
    fn name_of(&self, uid: u32) -> String {
        let users = self.text("/etc/passwd").unwrap_or_default();
        let mut lines = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let line = lines.find(|fields| fields.get(2).and_then(|number| number.parse().ok()) == Some(uid));
        line.map_or_else(|| uid.to_string(), |fields| format!("{} ({uid})", fields[0]))
    }

    /// The port: of the configuration; without one, of a variable, or the image's own.
    pub(super) fn port(&self, kind: &Kind) -> Option<u16> {
        match self.settings() {
            Some(config) => Some(config.main.listen_port),
            None => kind.port_variable().and_then(|name| *self.variables.get(name)?).or(kind.usual_port()),
        }
    }

    /// The configuration, as far as it can be understood: `pgweir check` reports its faults.
    fn settings(&self) -> Option<Config> {
        let path = self.config.as_deref()?;
        self.text(path)?;
        let mut read =
            |name: &str| fs::read_to_string(inside(&self.root, name)).map_err(|error| error.to_string());
        Some(Config::survey(path, &[], &mut read).0)
    }
}

/// A path as it is inside of `root`.
fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The process named pgbouncer with the lowest number, unless it is pgweir under that name.
fn process(root: &Path) -> Option<Process> {
    let folders = fs::read_dir(inside(root, "/proc")).ok()?;
    let mut pids: Vec<u32> =
        folders.filter_map(|folder| folder.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().find_map(|pid| {
        let file = |name: &str| inside(root, &format!("/proc/{pid}/{name}"));
        let name = fs::read_to_string(file("comm")).ok()?;
        let program = fs::read_link(file("exe")).unwrap_or_default();
        if name.trim_end() != "pgbouncer" || program.file_name().is_some_and(|name| name == "pgweir") {
            return None;
        }
        let line = fs::read(file("cmdline")).ok()?;
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let status = fs::read_to_string(file("status")).unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        Some(Process { pid, words: words.filter(|word| !word.is_empty()).collect(), uid })
    })
}

/// The variables that a process was started with.
fn variables_of(root: &Path, pid: u32) -> Vec<(String, String)> {
    let bytes = fs::read(inside(root, &format!("/proc/{pid}/environ"))).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The lines of a unit that matter. A unit without `ExecStart=` is none.
fn unit(text: &str) -> Option<Unit> {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='))
            .next_back()
            .map(str::trim)
    };
    let start = value("ExecStart").filter(|start| !start.is_empty())?;
    Some(Unit {
        start: start.split_whitespace().map(str::to_owned).collect(),
        user: value("User").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_variables_tell_what_a_container_runs() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let scene = Scene::look(Path::new("/there/is/no/such/root"), pairs);
            Kind::of(&scene).map(|kind| (kind, scene.port(&kind)))
        };
        assert_eq!(of(&[("CONNECTION_POOLER_PORT", "5433")]), Some((Kind::Zalando, Some(5433))));
        assert_eq!(of(&[("CONNECTION_POOLER_MODE", "session")]), Some((Kind::Zalando, Some(5432))));
        let pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        assert_eq!(of(&[pod, ("DB_HOST", "db"), ("LISTEN_PORT", "7000")]), Some((Kind::Edoburu, Some(7000))));
        assert_eq!(of(&[("DB_HOST", "db")]), None, "an application on a host has such a variable, too");
        assert_eq!(of(&[pod]), None);
    }
}
