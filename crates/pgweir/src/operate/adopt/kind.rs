//! The ways in which PgBouncer is started, what each is recognised by, and the line that changes.

use super::scene::Scene;

/// A way in which PgBouncer is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    CloudNativePg,
    Crunchy,
    Zalando,
    Bitnami,
    Edoburu,
    /// An image that is none of these.
    Image,
    /// A service of systemd, as packages have it.
    Service,
    /// A process that something else starts, or a file alone.
    ByHand,
}

/// The change with which pgweir takes over.
pub(super) struct Change {
    /// The place of the line: a file, or a manifest.
    pub(super) place: &'static str,
    /// The new line.
    pub(super) line: String,
    /// Further facts for the reader.
    pub(super) notes: Vec<String>,
}

impl Kind {
    /// Returns the way in which PgBouncer is started; `None` if there is no trace of it.
    pub(super) fn of(scene: &Scene) -> Option<Kind> {
        let config = scene.config.as_deref().unwrap_or_default();
        let is_edoburus =
            ["DATABASE_URL", "DATABASE_URLS", "DB_HOST"].iter().any(|name| scene.has_variable(name));
        if config.starts_with("/controller/") {
            Some(Kind::CloudNativePg)
        } else if config.contains("~postgres-operator") {
            Some(Kind::Crunchy)
        } else if scene.has_variable("CONNECTION_POOLER_*") {
            Some(Kind::Zalando)
        } else if scene.has("/opt/bitnami/pgbouncer") || scene.has("/bitnami/pgbouncer") {
            Some(Kind::Bitnami)
        } else if scene.is_container() && is_edoburus {
            Some(Kind::Edoburu)
        } else if scene.process.is_none() && scene.config.is_none() && scene.unit.is_none() {
            None
        } else if scene.is_container() {
            Some(Kind::Image)
        } else if scene.unit.is_some() {
            Some(Kind::Service)
        } else {
            Some(Kind::ByHand)
        }
    }

    /// The name for the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::CloudNativePg => "CloudNativePG's image",
            Kind::Crunchy => "Crunchy's image",
            Kind::Zalando => "the image of Zalando's operator",
            Kind::Bitnami => "Bitnami's image",
            Kind::Edoburu => "edoburu's image, or one with its variables",
            Kind::Image => "an image",
            Kind::Service => "a service of systemd, pgbouncer.service",
            Kind::ByHand => "by hand, or by a program that is not known",
        }
    }

    /// The operator that writes the configuration.
    pub(super) fn operator(self, scene: &Scene) -> &'static str {
        match self {
            Kind::CloudNativePg => "CloudNativePG",
            Kind::Crunchy => "Crunchy Postgres for Kubernetes",
            Kind::Zalando => "Zalando's",
            _ if scene.is_kubernetes() => "none that is known; a pod of Kubernetes",
            _ => "none",
        }
    }

    /// The variable that has the port.
    pub(super) fn port_variable(self) -> Option<&'static str> {
        match self {
            Kind::Zalando => Some("CONNECTION_POOLER_PORT"),
            Kind::Bitnami => Some("PGBOUNCER_PORT"),
            Kind::Edoburu => Some("LISTEN_PORT"),
            _ => None,
        }
    }

    /// The port without that variable.
    pub(super) fn usual_port(self) -> Option<u16> {
        match self {
            Kind::Zalando | Kind::Edoburu => Some(5432),
            Kind::Bitnami => Some(6432),
            _ => None,
        }
    }

    /// The line that puts pgweir in PgBouncer's place.
    pub(super) fn change(self, scene: &Scene, image: &str) -> Change {
        let container = "the image of this container, in its compose file or manifest";
        let named = format!("image: {image}");
        let (place, line, page) = match self {
            Kind::CloudNativePg => (
                "the container pgbouncer in the pod template of the Pooler (spec.template.spec.containers)",
                named,
                "docs/start/kubernetes.md",
            ),
            Kind::Crunchy => ("spec.proxy.pgBouncer of the PostgresCluster", named, "docs/start/images.md"),
            Kind::Zalando => (
                "the operator's configuration (connection_pooler)",
                format!("connection_pooler_image: {image}"),
                "docs/start/kubernetes.md",
            ),
            Kind::Bitnami | Kind::Edoburu | Kind::Image => (container, named, "docs/start/images.md"),
            Kind::Service => (
                "this line of the service (sudo systemctl edit --full pgbouncer)",
                format!("ExecStart={}", with_pgweir(scene.unit.as_ref().map(|unit| &*unit.start))),
                "docs/migrate/pgbouncer.md",
            ),
            Kind::ByHand => (
                "the command that starts PgBouncer",
                match (&scene.process, &scene.config) {
                    (Some(process), _) => with_pgweir(Some(&process.words)),
                    (None, config) => format!("{PROGRAM} {}", config.as_deref().unwrap_or_default()),
                },
                "docs/migrate/pgbouncer.md",
            ),
        };
        let mut notes = Vec::new();
        if self == Kind::Edoburu && !scene.has_variable("LISTEN_PORT") {
            let port = scene.port(&self).unwrap_or(5432);
            notes.push(format!(
                "Clients use port {port}. Unless the configuration file is mounted, pgweir's port is 6432: add the variable LISTEN_PORT={port}."
            ));
        }
        if let Some(config) = &scene.config {
            notes.push(format!("Check the file first: pgweir check {config}"));
        }
        notes.push(format!("To go back, write the old line again. More: {page}"));
        Change { place, line, notes }
    }
}

/// Where the packages have pgweir.
const PROGRAM: &str = "/usr/bin/pgweir";

/// A command line with pgweir in place of its program.
fn with_pgweir(words: Option<&[String]>) -> String {
    let arguments = words.and_then(|words| words.get(1..)).unwrap_or_default();
    [&[PROGRAM.to_owned()], arguments].concat().join(" ")
}
