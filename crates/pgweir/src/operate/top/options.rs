//! The command line of `pgweir top`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use crate::command_line::OverlayOptions;

/// The text of `top -h`.
pub(crate) const TOP_HELP: &str = "\
pgweir top: a live view of a running pooler in the terminal.

Usage:
  pgweir top [OPTION]...

The first lines have the number of waiting clients, the longest wait, its cause,
and what helps. Pools, clients, servers, statements and nodes of clusters follow.

Options:
  -c, --config=FILE      the configuration that the pooler runs with
                         (/etc/pgweir/pgweir.ini)
      --url=URL          postgres://USER:PASSWORD@HOST:PORT of the console;
                         PGPASSWORD can have the password
      --interval=SECS    the time between two readings (2)
      --once             print one screen as plain text, then exit
      --overlay=DIR      read DIR/*.ini after the file
      --no-overlay       read the file alone
  -h, --help             show this help, then exit

The console is entered over the unix socket by the user that pgweir runs as,
or as a user of admin_users or stats_users whose password is in auth_file. A
user of stats_users may look, and change nothing.

Keys:
  1 to 6, Tab, arrows    another view
  up, down, Page, Home   choose a line; Enter shows all of its values
  s, <, >, S             sort by another column; in the other direction
  /                      show only lines with a text; Esc shows all
  k                      disconnect a client, after a question; in pools p, r,
                         c and k, in nodes a, d, x and w: the last line says
  space, h, q            freeze the screen, help, quit

Exit code: 0 quit; 2 the console could not be entered, there is no terminal, or
the arguments are wrong.
";

/// The shortest and the longest interval, seconds.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// The work of one call of `pgweir top`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TopCommand {
    /// Show the screen.
    Look(Options),
    /// `-h`
    Help,
}

/// The options of `pgweir top`: the way to the console, and the form of the output.
#[cfg_attr(
    not(feature = "top"),
    allow(dead_code, reason = "without the feature, options are understood and not followed")
)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The configuration file; `None`: that of the packages.
    pub(crate) config: Option<PathBuf>,
    pub(crate) url: Option<String>,
    pub(crate) overlay: OverlayOptions,
    /// The time between two readings.
    pub(crate) interval: Duration,
    /// `--once`: one screen as text.
    pub(crate) is_once: bool,
}

/// Understands what comes after `top`.
pub(crate) fn parse(args: Vec<OsString>) -> Result<TopCommand, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let interval = Duration::from_secs(2);
    let overlay = OverlayOptions::default();
    let mut options = Options { config: None, url: None, overlay, interval, is_once: false };
    let text = |error: lexopt::Error| error.to_string();
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(TopCommand::Help),
            Short('c') | Long("config") => options.config = Some(parser.value().map_err(text)?.into()),
            Long("url") => options.url = Some(parser.value().map_err(text)?.string().map_err(text)?),
            Long("interval") => {
                let seconds: f64 = parser.value().map_err(text)?.parse().map_err(text)?;
                if !INTERVAL_S.contains(&seconds) {
                    return Err("--interval takes seconds, from 0.1 to 3600".to_owned());
                }
                options.interval = Duration::from_secs_f64(seconds);
            }
            Long("once") => options.is_once = true,
            Long("overlay") => options.overlay.folders.push(parser.value().map_err(text)?.into()),
            Long("no-overlay") => options.overlay.is_off = true,
            other => return Err(other.unexpected().to_string()),
        }
    }
    if options.config.is_some() && options.url.is_some() {
        return Err("--config and --url both say where the console is: give one".to_owned());
    }
    Ok(TopCommand::Look(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        match parse(line.split_whitespace().map(OsString::from).collect())? {
            TopCommand::Look(options) => Ok(options),
            TopCommand::Help => Err("help".to_owned()),
        }
    }

    #[test]
    fn options_are_understood() {
        let plain = parsed("").expect("good");
        assert_eq!((plain.interval, plain.is_once, plain.config), (Duration::from_secs(2), false, None));
        let all = parsed("--url postgres://u@h:1 --interval 0.5 --once --no-overlay").expect("good");
        assert_eq!((all.interval, all.is_once, all.overlay.is_off), (Duration::from_millis(500), true, true));
        assert_eq!(parsed("-c a.ini").expect("good").config, Some("a.ini".into()));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for (line, expected) in [
            ("-h", "help"),
            ("pools", "unexpected argument"),
            ("--interval 0", "from 0.1"),
            ("--interval NaN", "from 0.1"),
            ("--interval soon", "soon"),
            ("-c a --url b", "give one"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
