//! Reads the files of `auth_type = hba` (rules and maps), and the options of `auth_type = ldap`.

use std::path::Path;
use std::sync::Arc;

use pgweir_auth::{Access, Hba, IdentMaps, LdapOptions};
use pgweir_settings::{AuthType, Main};

use crate::config::files::read_text;

/// The rules and options that were read, with the faults found in them.
#[derive(Default)]
pub(crate) struct AccessFiles {
    pub(crate) access: Arc<Access>,
    /// Warnings about lines that are skipped.
    pub(crate) warnings: Vec<String>,
    /// Faults of files that cannot be read. A start goes on without them, and refuses all logins; a reload
    /// fails.
    pub(crate) faults: Vec<String>,
}

impl AccessFiles {
    /// Reads the files and options that `auth_type` asks for.
    pub(crate) fn read(main: &Main) -> AccessFiles {
        let mut files = AccessFiles::default();
        let mut access = Access::default();
        match main.auth_type {
            AuthType::Hba => {
                access.hba = files.rules(&main.auth_hba_file);
                access.ident = files.maps(main.auth_ident_file.as_deref().unwrap_or_default());
                for rule in access.hba.rules() {
                    if let Some(map) = rule.map.as_deref().filter(|map| !access.ident.has(map)) {
                        let line = rule.line;
                        files.warnings.push(format!("hba config line {line}: ident map {map} is not found"));
                    }
                }
            }
            AuthType::Ldap => {
                let options = main.auth_ldap_options.as_ref();
                let options = LdapOptions::parse(options.map_or("", |options| options.reveal()));
                match options {
                    Ok(options) => access.ldap = Some(Arc::new(options)),
                    Err(error) => files.faults.push(format!("invalid auth_ldap_options: {error}")),
                }
            }
            _ => {}
        }
        files.access = Arc::new(access);
        files
    }

    fn rules(&mut self, path: &str) -> Hba {
        let Some(text) = self.text("hba", path) else { return Hba::default() };
        // A file that a rule names is relative to the file with the rule.
        let folder = Path::new(path).parent().unwrap_or(Path::new("")).to_owned();
        let mut read = |name: &str| read_text(&folder.join(name).to_string_lossy());
        let (hba, warnings) = Hba::parse(&text, &mut read);
        self.warnings.extend(warnings);
        hba
    }

    fn maps(&mut self, path: &str) -> IdentMaps {
        if path.is_empty() {
            return IdentMaps::default();
        }
        let Some(text) = self.text("ident", path) else { return IdentMaps::default() };
        let (maps, warnings) = IdentMaps::parse(&text);
        self.warnings.extend(warnings);
        maps
    }

    fn text(&mut self, what: &str, path: &str) -> Option<String> {
        let fault = |why| format!("could not open {what} config file {path}: {why}");
        if path.is_empty() {
            // The setting may follow later: until then all logins are refused.
            self.warnings.push(format!("auth_type=hba needs a file: auth_{what}_file is not set"));
            return None;
        }
        read_text(path).map_err(|why| self.faults.push(fault(why))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn rules_maps_and_names_beside_them() {
        let scratch = Scratch::new("access");
        let hba =
            scratch.write("hba", "local @people all peer map=m\nlocal all all peer map=none\nnonsense\n");
        scratch.write("people", "alice\n");
        let ident = scratch.write("ident", "m root alice\nbad\n");
        let main = Main {
            auth_type: AuthType::Hba,
            auth_hba_file: hba.display().to_string(),
            auth_ident_file: Some(ident.display().to_string()),
            ..Main::default()
        };
        let files = AccessFiles::read(&main);
        assert_eq!((files.access.hba.rules().len(), files.faults.len()), (2, 0));
        assert!(files.access.ident.allows("m", "root", "alice"));
        assert_eq!(files.warnings.len(), 3, "{:?}", files.warnings);
        let off = AccessFiles::read(&Main { auth_type: AuthType::Md5, ..main });
        assert!(off.access.hba.rules().is_empty() && off.warnings.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_a_fault() {
        let main = Main { auth_type: AuthType::Hba, ..Main::default() };
        let files = AccessFiles::read(&main);
        assert_eq!(
            (files.warnings.len(), files.faults.len()),
            (1, 0),
            "the file may be set after the method"
        );
        let main = Main { auth_hba_file: "/no/such/file".to_owned(), ..main };
        let files = AccessFiles::read(&main);
        assert!(files.faults[0].starts_with("could not open hba config file /no/such/file: "));
        assert!(files.access.hba.rules().is_empty());
        let main = Main { auth_type: AuthType::Ldap, ..Main::default() };
        assert!(AccessFiles::read(&main).faults[0].starts_with("invalid auth_ldap_options: "));
    }
}
