//! The shell completions in deploy/packages/completions are made from what `pgweir --help` prints; this fails when they are stale.
//! `UPDATE=1 cargo test -p pgweir completions` writes them again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::command_line::{CHECK_HELP, DOCTOR_HELP, ENTRYPOINT_HELP, HELP, IMPORT_HELP};
use crate::operate::adopt::ADOPT_HELP;
use crate::operate::cache::CACHE_HELP;
use crate::operate::ctl::CTL_HELP;
use crate::operate::node::NODE_HELP;
use crate::operate::pair::PAIR_HELP;
use crate::operate::top::TOP_HELP;

/// A line of `--help` for an option.
struct Flag {
    short: &'static str,
    long: &'static str,
    has_value: bool,
    does: &'static str,
}

fn flags() -> Vec<Flag> {
    let lines = HELP.lines().filter_map(|line| line.strip_prefix("  -"));
    let parse = |line: &'static str| {
        let (short, rest) = line.split_once(", --").expect("a short and a long name");
        let (long, does) = rest.split_once("  ").expect("what it does");
        let long = long.split_once('=');
        let whole = rest.split_once(' ').expect("a name").0;
        Flag {
            short,
            long: long.map_or(whole, |(name, _)| name),
            has_value: long.is_some(),
            does: does.trim(),
        }
    };
    lines.map(parse).collect()
}

/// The subcommands, each with what it does.
fn subcommands() -> Vec<(&'static str, &'static str)> {
    let lines = HELP.lines().filter_map(|line| line.strip_prefix("  pgweir "));
    let parse = |line: &'static str| {
        let (usage, does) = line.split_once("  ").expect("what it does");
        let name = usage.split(' ').next().expect("a word");
        name.starts_with(|first: char| first.is_ascii_lowercase()).then_some((name, does.trim()))
    };
    lines.filter_map(parse).collect()
}

/// A long option of a subcommand.
struct SubFlag {
    long: &'static str,
    has_value: bool,
    does: &'static str,
}

/// Subcommands whose options are described here; those of the tools are elsewhere.
const HELPS: [(&str, &str); 10] = [
    ("check", CHECK_HELP),
    ("doctor", DOCTOR_HELP),
    ("top", TOP_HELP),
    ("import", IMPORT_HELP),
    ("ctl", CTL_HELP),
    ("cache", CACHE_HELP),
    ("node", NODE_HELP),
    ("pair", PAIR_HELP),
    ("adopt", ADOPT_HELP),
    ("entrypoint", ENTRYPOINT_HELP),
];

/// The words that `pgweir ctl` begins a command with.
const CTL_WORDS: &str = "nodes clusters pools clients servers databases peers attach drain detach switchover promote pause resume reload stop log-level show";

fn sub_flags(help: &'static str) -> Vec<SubFlag> {
    let lines = help.lines().filter_map(|line| line.strip_prefix("      --"));
    let parse = |line: &'static str| {
        let (usage, does) = line.split_once("  ").expect("what it does");
        let (long, value) = usage.split_once('=').unwrap_or((usage, ""));
        // The rest of a text of several lines is left out.
        SubFlag { long, has_value: !value.is_empty(), does: does.trim().trim_end_matches([',', ';', ':']) }
    };
    lines.map(parse).collect()
}

const HEAD: &str =
    "# Made from `pgweir --help`. To write it again: UPDATE=1 cargo test -p pgweir completions\n";

fn bash() -> String {
    let with_value = flags()
        .iter()
        .filter(|flag| flag.has_value)
        .map(|flag| format!("-{} | --{}", flag.short, flag.long))
        .collect::<Vec<_>>();
    let names = flags().into_iter().map(|flag| format!("-{} --{}", flag.short, flag.long));
    let names: Vec<String> =
        names.chain(sub_flags(HELP).iter().map(|flag| format!("--{}", flag.long))).collect();
    let words = subcommands().iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let cases: String = HELPS
        .iter()
        .map(|(command, help)| {
            let names: Vec<String> = sub_flags(help).iter().map(|flag| format!("--{}", flag.long)).collect();
            format!("        {command}) options=\"{} --help\" ;;\n", names.join(" "))
        })
        .collect();
    format!(
        r#"# shellcheck shell=bash
{HEAD}_pgweir() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} first="" options="{names}"
    case $before in
        {with_value})
            mapfile -t COMPREPLY < <(compgen -u -- "$word")
            return
            ;;
    esac
    case ${{COMP_WORDS[1]}} in
{cases}    esac
    case $word in
        -*) mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word") ;;
        *)
            if [ "$COMP_CWORD" = 1 ]; then first="{words}"; fi
            if [ "${{COMP_WORDS[1]}}" = ctl ]; then
                # Names come from the running pooler, if this user may look at it.
                case $before in
                    attach | drain | detach | switchover | promote)
                        first=$(pgweir ctl nodes 2>/dev/null | awk 'NR > 1 {{ print $1 "." $2 }}') ;;
                    pools | clients | servers | pause | resume)
                        first=$(pgweir ctl databases 2>/dev/null | awk 'NR > 1 {{ print $1 }}') ;;
                    stop) first="fast smart immediate" ;;
                    *) first="{ctl_words}" ;;
                esac
                mapfile -t COMPREPLY < <(compgen -W "$first" -- "$word")
                return
            fi
            if [ "${{COMP_WORDS[1]}}" = node ] && [ "$COMP_CWORD" = 2 ]; then first="add rebuild remove"; fi
            if [ "${{COMP_WORDS[1]}}" = cache ] && [ "$COMP_CWORD" = 2 ]; then first="verify"; fi
            mapfile -t COMPREPLY < <(
                compgen -W "$first" -- "$word"
                compgen -f -X '!*.ini' -- "$word"
                compgen -d -- "$word"
            )
            ;;
    esac
}}
complete -o filenames -F _pgweir pgweir
"#,
        with_value = with_value.join(" | "),
        names = names.join(" "),
        words = words.join(" "),
        ctl_words = CTL_WORDS,
    )
}

fn zsh() -> String {
    let mut page = format!("#compdef pgweir\n{HEAD}local -a commands=(\n");
    for (name, does) in subcommands() {
        let _ = writeln!(page, "    {}", quoted(&format!("{name}:{does}")));
    }
    page.push_str(")\ncase $words[2] in\n");
    for (command, help) in HELPS {
        let _ = writeln!(page, "{command})\n    _arguments -s '1: :' \\");
        for SubFlag { long, has_value, does } in sub_flags(help) {
            let (equals, value) = if has_value { ("=", ":value:_files") } else { ("", "") };
            let _ = writeln!(page, "        --{long}{equals}{} \\", quoted(&format!("[{does}]{value}")));
        }
        let words =
            if command == "ctl" { format!("command:({CTL_WORDS})") } else { "file:_files".to_owned() };
        let _ = writeln!(page, "        '*:{words}'\n    return\n    ;;");
    }
    page.push_str("esac\n_arguments -s \\\n");
    for Flag { short, long, has_value, does } in flags() {
        let (plus, equals, value) = if has_value { ("+", "=", ":user:_users") } else { ("", "", "") };
        let does = quoted(&format!("[{does}]{value}"));
        let _ = writeln!(page, "    '(-{short} --{long})'{{-{short}{plus},--{long}{equals}}}{does} \\");
    }
    for SubFlag { long, has_value, does } in sub_flags(HELP) {
        let (equals, value) = if has_value { ("=", ":value:_files") } else { ("", "") };
        let _ = writeln!(page, "    --{long}{equals}{} \\", quoted(&format!("[{does}]{value}")));
    }
    page.push_str("    '1: :{ _describe command commands; _files -g \"*.ini\" }' \\\n    '*:file:_files -g \"*.ini\"'\n");
    page
}

fn fish() -> String {
    let mut page = HEAD.to_owned();
    for (name, does) in subcommands() {
        let _ = writeln!(page, "complete -c pgweir -n __fish_use_subcommand -a {name} -d {}", quoted(does));
    }
    for (command, help) in HELPS {
        for SubFlag { long, has_value, does } in sub_flags(help) {
            let value = if has_value { " -r" } else { "" };
            let _ = writeln!(
                page,
                "complete -c pgweir -n '__fish_seen_subcommand_from {command}' -l {long}{value} -d {}",
                quoted(does)
            );
        }
    }
    let _ = writeln!(page, "complete -c pgweir -n '__fish_seen_subcommand_from ctl' -f -a '{CTL_WORDS}'");
    for Flag { short, long, has_value, does } in flags() {
        let value = if has_value { " -x -a '(__fish_complete_users)'" } else { "" };
        let _ = writeln!(page, "complete -c pgweir -s {short} -l {long}{value} -d {}", quoted(does));
    }
    for SubFlag { long, has_value, does } in sub_flags(HELP) {
        let value = if has_value { " -r" } else { "" };
        let _ = writeln!(page, "complete -c pgweir -l {long}{value} -d {}", quoted(does));
    }
    page
}

/// In single quotes, for a shell.
fn quoted(text: &str) -> String {
    assert!(!text.contains(['\'', '\\']), "this needs more care in a shell: {text}");
    format!("'{text}'")
}

#[test]
fn the_completions_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages/completions");
    for (name, page) in [("pgweir.bash", bash()), ("_pgweir", zsh()), ("pgweir.fish", fish())] {
        let path = folder.join(name);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(&folder).expect("the folder can be made");
            fs::write(&path, &page).expect("the file can be written");
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == page, "{name} is stale: run UPDATE=1 cargo test -p pgweir completions");
    }
}

#[test]
fn help_has_options_and_subcommands_to_complete() {
    assert_eq!(flags().len(), HELP.matches("\n  -").count());
    assert!(flags().iter().any(|flag| flag.long == "user" && flag.has_value && flag.short == "u"));
    assert!(subcommands().iter().any(|&(name, does)| name == "check" && does.contains("faults")));
    for (command, help) in HELPS {
        assert!(subcommands().iter().any(|(name, _)| *name == command));
        assert_eq!(sub_flags(help).len(), help.matches("\n      --").count(), "{command}");
    }
    let named: Vec<&str> = CTL_HELP.split(|c: char| c.is_whitespace() || c == ',').collect();
    for word in CTL_WORDS.split(' ') {
        assert!(named.contains(&word), "{word}");
    }
    assert!(sub_flags(CHECK_HELP).iter().any(|flag| flag.long == "user" && flag.has_value));
}
