//! The configuration in effect, and its replacement: at the start, by RELOAD and by SET.
//!
//! A change happens in two steps. First everything is read and checked, into a [`Draft`], from which its
//! holder builds the parts that can fail (TLS). Only then [`ConfigState::adopt`] puts it into effect. So a
//! fault anywhere leaves the old configuration in effect as a whole.

use std::sync::Arc;

use pgweir_auth::{Access, UserList};
use pgweir_core::mail::Rules;
use pgweir_settings::{Config, HandedOver, Layer, LayerEffect, LoadError, Main, Place, SetOutcome};

use crate::config::access_files::AccessFiles;
use crate::config::files::{TlsFiles, UsersFile, read_text};
use crate::config::overlay::Overlay;
use crate::process::is_root;

/// The settings of the command line. They override the file, unless they only give a default.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// The configuration file.
    pub config: String,
    /// `-u`, which overrides the setting `user`.
    pub user: Option<String>,
    /// The number of `-v`. It counts if the file does not set `verbose`.
    pub verbosity: u8,
    /// The sources that are read after the file.
    pub overlay: Overlay,
}

/// The rules in effect, with the files they were read from.
pub struct ConfigState {
    command_line: CommandLine,
    rules: Rules,
    users: UsersFile,
    tls: TlsFiles,
    /// TLS settings given by SET with which no TLS can be built yet (the key without its certificate, for
    /// example). They are tried again with the next SET, until RELOAD.
    unusable: Vec<(String, String)>,
}

/// The result of a SET that is not in effect yet.
pub enum SetDraft {
    /// A draft that can be put into effect.
    Ready(Box<Draft>),
    /// The setting can only change at a start.
    NeedsRestart,
    /// The setting belongs to TLS, and names files that cannot be used; with the reasons.
    Unusable(Vec<String>),
}

/// Returns whether a setting belongs to TLS with clients or servers.
#[must_use]
pub(crate) fn is_about_tls(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    key.contains("_tls_") || key.contains("_tls13_")
}

/// A configuration that was read and checked, but is not in effect.
pub struct Draft {
    config: Config,
    users: UsersFile,
    access: Arc<Access>,
    tls: TlsFiles,
    /// Warnings for the administrator, in the order of the files.
    pub warnings: Vec<String>,
    /// Faults of the files of users and of rules. At a start these files are used as far as they can be read.
    pub user_faults: Vec<String>,
}

/// The contents of a configuration's files, faulty or not.
pub struct Examination {
    /// The configuration, as far as it can be understood, with its warnings.
    pub config: Config,
    /// The users of `auth_file`; `None` if it cannot be read to its end.
    pub users: Option<Arc<UserList>>,
    /// The rules of `auth_hba_file` and their maps.
    pub access: Arc<Access>,
    /// The parts from which TLS is built; files that cannot be read are missing.
    pub tls: TlsFiles,
    /// Faults of the configuration's own files.
    pub load_faults: Vec<LoadError>,
    /// Faults of the files that the configuration names.
    pub faults: Vec<String>,
    /// Warnings about these files.
    pub warnings: Vec<String>,
}

impl Draft {
    /// Reads the files for a start.
    ///
    /// # Errors
    ///
    /// All faults of the configuration, in the order of the file's lines; or those of the certificates.
    pub fn read(command_line: &CommandLine) -> Result<Draft, Vec<String>> {
        let mut config = read_config(&command_line.config, command_line)?;
        note_command_line(&mut config, command_line);
        let (users, mut user_faults) = UsersFile::default().refresh(config.main.auth_file.as_deref());
        let access = AccessFiles::read(&config.main);
        user_faults.extend(access.faults);
        let tls = match TlsFiles::read(&config.main) {
            Ok(tls) => tls,
            Err(mut faults) => {
                faults.extend(user_faults);
                return Err(faults);
            }
        };
        let remarks = command_line.overlay.remarks().map(str::to_owned);
        let warnings = config.warnings.iter().map(ToString::to_string).chain(remarks).chain(access.warnings);
        let warnings = warnings.collect();
        Ok(Draft { config, users, access: access.access, tls, warnings, user_faults })
    }

    /// Reads the files like [`Draft::read`], but goes on after each fault, for a report of all of them.
    #[must_use]
    pub fn examine(command_line: &CommandLine) -> Examination {
        let (layers, layer_faults) = read_layers(&command_line.config, command_line);
        let (mut config, load_faults) = Config::survey(&command_line.config, &layers, &mut read_text);
        obey(&mut config, command_line);
        let (users, mut faults) = UsersFile::default().refresh(config.main.auth_file.as_deref());
        let users = faults.is_empty().then_some(users.users);
        faults.splice(0..0, layer_faults);
        let access = AccessFiles::read(&config.main);
        faults.extend(access.faults);
        let (tls, tls_faults) = TlsFiles::read_what_is_there(&config.main);
        faults.extend(tls_faults);
        let warnings = command_line.overlay.remarks().map(str::to_owned).chain(access.warnings).collect();
        Examination { config, users, access: access.access, tls, load_faults, faults, warnings }
    }

    /// Returns the settings that can be understood of a file that [`Draft::read`] rejects. They tell where
    /// its faults can be reported.
    #[must_use]
    pub fn glimpse(command_line: &CommandLine) -> Main {
        let (layers, _) = read_layers(&command_line.config, command_line);
        let mut main = Config::survey(&command_line.config, &layers, &mut read_text).0.main;
        if let Some(user) = &command_line.user {
            main.user = Some(user.clone());
        }
        main
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the parts from which TLS is built.
    #[must_use]
    pub fn tls(&self) -> &TlsFiles {
        &self.tls
    }

    /// Returns lines about the configuration's file, and about each source that was read after it, with its
    /// changes.
    #[must_use]
    pub fn sources(&self) -> Vec<String> {
        let file = self.config.main.conffile.as_deref().unwrap_or_default();
        let effects = self.config.overlay.iter().map(LayerEffect::summary);
        std::iter::once(format!("configuration file {file}"))
            .chain(effects.map(|effect| format!("configuration: {effect}")))
            .collect()
    }

    /// Returns the number of users in `auth_file`.
    #[must_use]
    pub fn users_known(&self) -> usize {
        self.users.users.len()
    }
}

impl ConfigState {
    /// Creates the state of a start.
    #[must_use]
    pub fn new(command_line: CommandLine, draft: Draft) -> ConfigState {
        let Draft { config, users, access, tls, .. } = draft;
        let rules =
            Rules { config: Arc::new(config), users: Arc::clone(&users.users), access, server_tls_epoch: 0 };
        ConfigState { command_line, rules, users, tls, unusable: Vec::new() }
    }

    /// Returns the rules in effect.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Reads the files again. Settings that need a restart keep their value, with a warning.
    ///
    /// # Errors
    ///
    /// All faults. A user list that cannot be read to its end is a fault, too, as half of it would lock
    /// people out.
    pub fn draft_reload(&self) -> Result<Draft, Vec<String>> {
        let path = self.rules.config.main.conffile.as_deref().unwrap_or(&self.command_line.config);
        let read = read_config(path, &self.command_line)?;
        let mut diff = self.rules.config.diff(&read);
        note_command_line(&mut diff.merged, &self.command_line);
        let warnings = diff.warnings.iter().map(ToString::to_string).collect();
        self.draft(diff.merged, warnings)
    }

    /// Changes one setting, as SET on the console does.
    ///
    /// # Errors
    ///
    /// The setting does not exist, does not take the value, or names files that cannot be used.
    pub fn draft_set(&self, key: &str, value: &str) -> Result<SetDraft, Vec<String>> {
        let mut config = Config::clone(&self.rules.config);
        let about_tls = is_about_tls(key);
        // The key that SET gave before its certificate counts together with that certificate.
        for (key, value) in self.unusable.iter().filter(|_| about_tls) {
            config.set(key, value).map_err(|error| vec![error.to_string()])?;
        }
        match config.set(key, value) {
            Ok(SetOutcome::Applied) => match self.draft(config, Vec::new()) {
                Ok(draft) => Ok(SetDraft::Ready(Box::new(draft))),
                Err(faults) if about_tls => Ok(SetDraft::Unusable(faults)),
                Err(faults) => Err(faults),
            },
            Ok(SetOutcome::NeedsRestart) => Ok(SetDraft::NeedsRestart),
            Err(error) => Err(vec![error.to_string()]),
        }
    }

    /// Keeps a setting with which no TLS could be built, to be tried again with the next one.
    pub fn keep_unusable(&mut self, key: &str, value: &str) {
        self.unusable.retain(|(known, _)| known != key);
        self.unusable.push((key.to_owned(), value.to_owned()));
    }

    fn draft(&self, config: Config, mut warnings: Vec<String>) -> Result<Draft, Vec<String>> {
        let tls = TlsFiles::read(&config.main)?;
        let (users, mut user_faults) = self.users.refresh(config.main.auth_file.as_deref());
        let access = AccessFiles::read(&config.main);
        user_faults.extend(access.faults);
        warnings.extend(access.warnings);
        if !user_faults.is_empty() {
            return Err(user_faults);
        }
        Ok(Draft { config, users, access: access.access, tls, warnings, user_faults })
    }

    /// Returns whether TLS has to be built again for a draft, because a setting or the contents of a file
    /// changed.
    #[must_use]
    pub fn would_change_tls(&self, draft: &Draft) -> bool {
        draft.tls != self.tls
    }

    /// Returns the databases that are in effect and that this draft does not have.
    pub fn dropped_by(&self, draft: &Draft) -> Vec<String> {
        let kept = &draft.config.databases;
        self.rules.config.databases.keys().filter(|name| !kept.contains_key(*name)).cloned().collect()
    }

    /// Puts a draft into effect.
    pub fn adopt(&mut self, draft: Draft) {
        let Draft { config, users, access, tls, .. } = draft;
        let servers_changed = tls.servers != self.tls.servers;
        self.rules = Rules {
            config: Arc::new(config),
            users: Arc::clone(&users.users),
            access,
            server_tls_epoch: self.rules.server_tls_epoch + u64::from(servers_changed),
        };
        self.users = users;
        self.tls = tls;
    }

    /// Forgets the settings that SET could not put into effect: they are in effect now, or RELOAD has
    /// replaced them.
    pub fn forget_unusable(&mut self) {
        self.unusable.clear();
    }
}

/// Reads the layers over a file, and returns them with the faults of those that cannot be used.
fn read_layers(path: &str, command_line: &CommandLine) -> (Vec<Layer>, Vec<String>) {
    // Only the file itself decides the user: a layer must not decide which layers are trusted.
    let by_file = || Config::survey(path, &[], &mut read_text).0.main.user;
    let user = command_line.user.clone().or_else(|| is_root().then(by_file).flatten());
    match command_line.overlay.layers(user.as_deref()) {
        Ok(layers) => (layers, Vec::new()),
        Err(faults) => (Vec::new(), faults),
    }
}

fn read_config(path: &str, command_line: &CommandLine) -> Result<Config, Vec<String>> {
    let (layers, mut faults) = read_layers(path, command_line);
    let (mut config, load_faults) = Config::survey(path, &layers, &mut read_text);
    faults.extend(load_faults.iter().map(text_of));
    if !faults.is_empty() {
        return Err(faults);
    }
    obey(&mut config, command_line);
    Ok(config)
}

/// Applies the command line.
fn obey(config: &mut Config, command_line: &CommandLine) {
    config.handed_over = HandedOver(command_line.overlay.handed_over());
    if let Some(user) = &command_line.user {
        config.main.user = Some(user.clone());
    }
    if !config.given.contains_key("verbose") {
        config.main.verbose = u32::from(command_line.verbosity);
    }
}

/// Notes which values come from the command line, for SHOW CONFIG_EXTENDED. A reload compares the values
/// before this: a value that SET has changed lasts if the new file does not set it.
fn note_command_line(config: &mut Config, command_line: &CommandLine) {
    let place = || Place::outside("command line");
    if command_line.user.is_some() {
        config.given.insert("user", place());
    }
    let is_ours = config.main.verbose == u32::from(command_line.verbosity);
    if command_line.verbosity > 0 && is_ours {
        config.given.entry("verbose").or_insert_with(place);
    }
}

fn text_of(fault: &LoadError) -> String {
    fault.text.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    struct Files {
        scratch: Scratch,
    }

    impl Files {
        fn new(name: &str, main: &str) -> Files {
            let scratch = Scratch::new(name);
            scratch.write("users", "\"alice\" \"wonder\"\n");
            let files = Files { scratch };
            files.write(main);
            files
        }

        fn write(&self, main: &str) {
            let users = self.scratch.path("users");
            let text = format!(
                "[databases]\nshop = host=127.0.0.1\n[pgbouncer]\nauth_file = {}\n{main}\n",
                users.display()
            );
            self.scratch.write("pgweir.ini", &text);
        }

        fn command_line(&self) -> CommandLine {
            CommandLine {
                config: self.scratch.path("pgweir.ini").display().to_string(),
                ..CommandLine::default()
            }
        }

        fn start(&self) -> ConfigState {
            let draft = Draft::read(&self.command_line()).expect("good files");
            assert_eq!(draft.user_faults, Vec::<String>::new());
            ConfigState::new(self.command_line(), draft)
        }
    }

    #[test]
    fn reload_takes_the_new_file_but_not_what_needs_a_restart() {
        let files = Files::new("reload", "listen_port = 6432\ndefault_pool_size = 5");
        let mut config_state = files.start();
        files.write("listen_port = 7000\ndefault_pool_size = 9");
        let draft = config_state.draft_reload().expect("good");
        assert!(draft.warnings.iter().any(|text| text.contains("listen_port")), "{:?}", draft.warnings);
        assert_eq!(config_state.rules().config.main.default_pool_size, 5, "a draft is not in effect");
        config_state.adopt(draft);
        let main = &config_state.rules().config.main;
        assert_eq!((main.listen_port, main.default_pool_size), (6432, 9));
        assert_eq!(config_state.rules().server_tls_epoch, 0);
    }

    #[test]
    fn a_fault_anywhere_keeps_everything() {
        let files = Files::new("reload-fault", "default_pool_size = 5");
        let config_state = files.start();
        for (main, users, word) in [
            ("default_pool_size = 9\nno_such_setting = 1", "\"bob\" \"1\"\n", "no_such_setting"),
            ("default_pool_size = many", "\"bob\" \"1\"\n", "default_pool_size"),
            ("default_pool_size = 9", "bob 1\n", "broken auth file"),
            (
                "default_pool_size = 9\nserver_tls_sslmode = verify-ca\nserver_tls_ca_file = /no/such/file",
                "",
                "/no/such/file",
            ),
        ] {
            files.write(main);
            files.scratch.write("users", users);
            let faults = config_state.draft_reload().map(|_| ()).expect_err(main);
            assert!(faults[0].contains(word), "{faults:?}");
        }
        files.scratch.write("users", "\"alice\" \"wonder\"\n");
        std::fs::remove_file(files.scratch.path("pgweir.ini")).expect("it was there");
        assert!(config_state.draft_reload().is_err(), "no file");
        assert_eq!(config_state.rules().config.main.default_pool_size, 5);
        assert_eq!(config_state.rules().users.names().collect::<Vec<_>>(), ["alice"]);
    }

    #[test]
    fn the_epoch_follows_tls_towards_servers_only() {
        let files = Files::new("reload-tls", "");
        let name = |file: &str, text: &str| files.scratch.write(file, text).display().to_string();
        let (key, cert, ca) = (name("key", "K"), name("cert", "C"), name("ca", "A"));
        let mut config_state = files.start();
        let mut reload = |main: &str| {
            files.write(main);
            let draft = config_state.draft_reload().expect("good");
            let tls = config_state.would_change_tls(&draft);
            config_state.adopt(draft);
            (tls, config_state.rules().server_tls_epoch)
        };
        assert_eq!(reload(""), (false, 0));
        let clients = format!(
            "client_tls_sslmode = require\nclient_tls_key_file = {key}\nclient_tls_cert_file = {cert}"
        );
        assert_eq!(reload(&clients), (true, 0));
        let both = format!("{clients}\nserver_tls_sslmode = verify-ca\nserver_tls_ca_file = {ca}");
        assert_eq!(reload(&both), (true, 1));
        assert_eq!(reload(&both), (false, 1));
        files.scratch.write("ca", "renewed");
        assert_eq!(reload(&both), (true, 2), "same settings, other contents");
        files.scratch.write("cert", "renewed");
        assert_eq!(reload(&both), (true, 2));
    }

    #[test]
    fn set_lasts_until_reload() {
        let files = Files::new("set", "default_pool_size = 5");
        let mut config_state = files.start();
        let Ok(SetDraft::Ready(draft)) = config_state.draft_set("default_pool_size", "7") else {
            panic!("it can be changed");
        };
        config_state.adopt(*draft);
        assert_eq!(config_state.rules().config.main.default_pool_size, 7);
        assert!(matches!(config_state.draft_set("listen_port", "7"), Ok(SetDraft::NeedsRestart)));
        assert!(config_state.draft_set("default_pool_size", "many").is_err());
        assert!(config_state.draft_set("no_such", "1").is_err());
        let unused = config_state.draft_set("client_tls_key_file", "/no/such/file");
        assert!(matches!(unused, Ok(SetDraft::Ready(_))), "client TLS is off");
        assert!(config_state.draft_set("server_tls_sslmode", "perhaps").is_err());
        let draft = config_state.draft_reload().expect("good");
        config_state.adopt(draft);
        assert_eq!(config_state.rules().config.main.default_pool_size, 5);
    }

    #[test]
    fn tls_settings_count_together_once_they_fit() {
        let files = Files::new("set-tls", "server_tls_sslmode = prefer");
        let ca = files.scratch.write("ca", "CA").display().to_string();
        let mut config_state = files.start();
        assert!(matches!(config_state.draft_set("server_tls_sslmode", "verify-ca"), Ok(SetDraft::Ready(_))));
        for missing in ["/no/such/file", "/nor/this"] {
            let draft = config_state.draft_set("server_tls_ca_file", missing);
            assert!(matches!(draft, Ok(SetDraft::Unusable(faults)) if faults[0].contains(missing)));
            config_state.keep_unusable("server_tls_ca_file", missing);
        }
        assert!(matches!(config_state.draft_set("server_tls_sslmode", "require"), Ok(SetDraft::Unusable(_))));
        config_state.keep_unusable("server_tls_sslmode", "require");
        assert!(matches!(config_state.draft_set("default_pool_size", "7"), Ok(SetDraft::Ready(_))), "no TLS");
        let Ok(SetDraft::Ready(draft)) = config_state.draft_set("server_tls_ca_file", &ca) else {
            panic!("it is there")
        };
        assert_eq!(draft.config().main.server_tls_sslmode, pgweir_settings::SslMode::Require);
        config_state.adopt(*draft);
        config_state.forget_unusable();
        assert_eq!(config_state.rules().config.main.server_tls_ca_file, ca);
    }

    #[test]
    fn the_command_line_counts_at_the_start_and_at_reloads() {
        let files = Files::new("command-line", "user = from_file");
        let command_line =
            CommandLine { user: Some("from_option".to_owned()), verbosity: 2, ..files.command_line() };
        let draft = Draft::read(&command_line).expect("good");
        let mut config_state = ConfigState::new(command_line, draft);
        let seen = |config_state: &ConfigState| {
            (config_state.rules().config.main.user.clone(), config_state.rules().config.main.verbose)
        };
        assert_eq!(seen(&config_state), (Some("from_option".to_owned()), 2));
        let source = |config_state: &ConfigState, key: &str| {
            let rows = config_state.rules().config.show();
            rows.into_iter().find(|row| row.key == key).expect("a setting").source
        };
        assert_eq!(
            (source(&config_state, "user"), source(&config_state, "verbose")),
            ("command line".into(), "command line".into())
        );
        let Ok(SetDraft::Ready(draft)) = config_state.draft_set("verbose", "3") else {
            panic!("it can be changed")
        };
        config_state.adopt(*draft);
        let draft = config_state.draft_reload().expect("good");
        config_state.adopt(draft);
        assert_eq!(seen(&config_state).1, 3, "what SET says lasts if the file says nothing");
        files.write("user = other\nverbose = 1");
        let draft = config_state.draft_reload().expect("good");
        assert_eq!(draft.warnings, Vec::<String>::new());
        config_state.adopt(draft);
        assert_eq!(seen(&config_state), (Some("from_option".to_owned()), 1));
    }

    #[test]
    fn layers_are_read_again_and_a_bad_one_keeps_everything() {
        let files = Files::new("overlay", "default_pool_size = 5");
        let folder = files.scratch.path("conf.d");
        std::fs::create_dir_all(&folder).expect("a directory");
        let layer = |text: &str| std::fs::write(folder.join("a.ini"), text).expect("a file");
        let variables =
            [("PGWEIR_MAX_CLIENT_CONN".into(), "7".into()), ("MAX_CLIENT_CON".into(), "8".into())];
        let overlay =
            Overlay::of_process(std::slice::from_ref(&folder), variables.into_iter()).expect("good");
        let command_line = CommandLine { overlay, ..files.command_line() };
        layer("[pgbouncer]\ndefault_pool_size = 6\n");
        let draft = Draft::read(&command_line).expect("good");
        assert_eq!(
            draft.warnings,
            ["unknown variable MAX_CLIENT_CON; did you mean \"PGWEIR_MAX_CLIENT_CONN\"?"]
        );
        let sources = draft.sources();
        assert!(
            sources[0].starts_with("configuration file ") && sources[0].ends_with("pgweir.ini"),
            "{sources:?}"
        );
        assert!(sources[1].ends_with("conf.d/a.ini sets default_pool_size"), "{sources:?}");
        assert_eq!(sources[2], "configuration: PGWEIR_MAX_CLIENT_CONN sets max_client_conn");
        let mut config_state = ConfigState::new(command_line, draft);
        let seen = |config_state: &ConfigState| {
            let main = &config_state.rules().config.main;
            (main.default_pool_size, main.max_client_conn)
        };
        assert_eq!(seen(&config_state), (6, 7));
        layer("[pgbouncer]\ndefault_pool_size = 9\n");
        let draft = config_state.draft_reload().expect("good");
        assert!(draft.warnings.is_empty(), "variables are those of the start: {:?}", draft.warnings);
        config_state.adopt(draft);
        assert_eq!(seen(&config_state), (9, 7));
        layer("[pgbouncer]\ndefault_pool_size = many\n");
        let faults = config_state.draft_reload().map(|_| ()).expect_err("bad");
        assert!(faults[0].contains("conf.d/a.ini:2"), "{faults:?}");
        files.write("default_pool_size = none");
        std::fs::write(folder.join("b.ini"), b"\xff").expect("a file");
        let faults = config_state.draft_reload().map(|_| ()).expect_err("bad");
        assert_eq!(faults.len(), 2, "the directory's and the file's: {faults:?}");
        assert_eq!(seen(&config_state), (9, 7));
    }

    #[test]
    fn a_start_tells_all_faults_and_takes_half_a_user_list() {
        let files = Files::new("start", "listen_port = many\nno_such = 1");
        let faults = Draft::read(&files.command_line()).map(|_| ()).expect_err("bad");
        assert_eq!(faults.len(), 2, "{faults:?}");
        files.write("");
        files.scratch.write("users", "\"alice\" \"1\"\nbob 2\n");
        let draft = Draft::read(&files.command_line()).expect("good enough");
        assert_eq!((draft.users_known(), draft.user_faults.len()), (1, 1));
    }
}
