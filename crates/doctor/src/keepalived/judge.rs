//! Findings about a pair of poolers that keepalived's files describe. Each finding is a fault that was seen
//! with keepalived 2.2.

use super::conf::{Conf, Instance, Script};
use super::syntax::SyntaxError;
use crate::finding::Finding;

/// The time that the address of a pooler that was killed may take to move.
const MOVE_S_MAX: f64 = 3.0;

/// Returns findings about the file of one machine, or of both, each with its name.
///
/// # Errors
///
/// A file that keepalived could not read either, with its name.
pub fn inspect(files: &[(&str, &str)]) -> Result<Vec<Finding>, (String, SyntaxError)> {
    let mut found = Vec::new();
    let mut read = Vec::new();
    for (name, text) in files {
        let conf = Conf::read(text).map_err(|error| ((*name).to_owned(), error))?;
        let mut its = of_file(&conf);
        if files.len() > 1 {
            its.iter_mut().for_each(|finding| finding.text = format!("{name}: {}", finding.text));
        }
        found.extend(its);
        read.push(conf);
    }
    if let [one, other] = read.as_slice() {
        found.extend(one.instances.iter().flat_map(|instance| against(instance, one, other)));
    }
    found.sort_by_key(|finding| finding.severity);
    Ok(found)
}

fn of_file(conf: &Conf) -> Vec<Finding> {
    let mut found = of_globals(conf);
    for instance in &conf.instances {
        found.extend(of_instance(conf, instance));
        found.extend(of_election(conf, instance));
        let tracked = instance.tracked.iter().filter_map(|(name, _)| conf.script(name));
        found.extend(tracked.flat_map(|script| of_script(conf, script)));
    }
    found
}

fn of_globals(conf: &Conf) -> Vec<Finding> {
    let mut found = Vec::new();
    if conf.instances.is_empty() {
        let remedy = "let pgweir pair keepalived write the file";
        found.push(Finding::error("no_instance", "there is no vrrp_instance".to_owned(), remedy));
    }
    if conf.includes {
        let text = "the file includes others, which were not read".to_owned();
        found.push(Finding::note("includes", text, "check them together: join the files first"));
    }
    if conf.is_strict && conf.instances.iter().any(|instance| !instance.peers.is_empty()) {
        let text = "vrrp_strict allows no unicast_peer, and drops packets to the address".to_owned();
        found.push(Finding::error("strict", text, "remove vrrp_strict"));
    }
    if !conf.scripts.is_empty() && !conf.has_script_security {
        let text = "without enable_script_security a check that other users can write to runs as root";
        let remedy = "write enable_script_security to global_defs";
        found.push(Finding::warning("script_security", text.to_owned(), remedy));
    }
    found
}

fn of_instance(conf: &Conf, instance: &Instance) -> Vec<Finding> {
    let Instance { name, .. } = instance;
    let mut found = Vec::new();
    if instance.router_id.is_none() {
        let text = format!("{name}: virtual_router_id is missing, keepalived refuses the file");
        found.push(Finding::error(
            "no_router_id",
            text,
            "write virtual_router_id 51, the same on both machines",
        ));
    }
    if instance.interface.is_none() {
        let text = format!("{name}: interface is missing");
        found.push(Finding::error("no_interface", text, "name the interface that gets the address"));
    }
    if instance.addresses.is_empty() {
        let text = format!("{name}: virtual_ipaddress names no address");
        found.push(Finding::error(
            "no_address",
            text,
            "write the address with its prefix, as in 10.0.0.9/24",
        ));
    }
    for address in instance.addresses.iter().filter(|address| !address.contains('/')) {
        let text =
            format!("{name}: {address} has no prefix, so keepalived takes a network of this address alone");
        found.push(Finding::warning(
            "no_prefix",
            text,
            format!("write {address}/24, or the prefix of your network"),
        ));
    }
    if instance.peers.is_empty() {
        let text = format!(
            "{name}: without unicast_peer the machines talk by multicast, which clouds and many switches drop: both would take the address"
        );
        found.push(Finding::warning("multicast", text, "write unicast_src_ip and unicast_peer"));
    }
    if instance.version == 2 && instance.advert_s.fract() != 0.0 {
        let text = format!("{name}: advert_int {} needs VRRP 3; keepalived rounds it", instance.advert_s);
        found.push(Finding::error("fraction", text, "write vrrp_version 3 to global_defs"));
    }
    if instance.version == 3 && instance.has_authentication {
        let text = format!("{name}: VRRP 3 has no authentication, keepalived ignores the block");
        found.push(Finding::warning(
            "authentication",
            text,
            "let a firewall take protocol 112 from the other machine only",
        ));
    }
    if instance.tracked.is_empty() {
        let text =
            format!("{name}: nothing checks pgweir, so a machine whose pooler is dead keeps the address");
        found.push(Finding::error(
            "no_check",
            text,
            "write a vrrp_script that asks for /readyz, and track_script",
        ));
    }
    for (script, _) in instance.tracked.iter().filter(|(script, _)| conf.script(script).is_none()) {
        let text = format!("{name}: there is no vrrp_script {script}, keepalived ignores the check");
        found.push(Finding::error("no_script", text, "correct its name"));
    }
    found
}

/// Checks that the address moves when it should, and stays when it should.
fn of_election(conf: &Conf, instance: &Instance) -> Vec<Finding> {
    let Instance { name, .. } = instance;
    let mut found = Vec::new();
    if instance.is_master {
        let text = if instance.is_nopreempt {
            format!("{name}: with state MASTER keepalived ignores nopreempt")
        } else {
            format!(
                "{name}: with state MASTER this machine takes the address back when it returns, and clients are disconnected twice"
            )
        };
        found.push(Finding::warning("state_master", text, "write state BACKUP on both machines"));
    }
    let tracked = instance.tracked.iter();
    let weighed = tracked.filter_map(|(name, weight)| {
        let script = conf.script(name)?;
        Some((script, weight.unwrap_or(script.weight)))
    });
    for (script, weight) in weighed {
        if weight == 0 {
            let text = format!(
                "{name}: {} has no weight, so a machine whose check fails gives the address up: if both checks fail, no machine has it",
                script.name
            );
            found.push(Finding::warning(
                "no_weight",
                text,
                "write weight -20, and the same priority on both machines",
            ));
        } else if instance.is_nopreempt && !instance.is_master {
            let text = format!(
                "{name}: with nopreempt the other machine ignores the weight of {}: a machine whose pooler is dead keeps the address",
                script.name
            );
            found.push(Finding::error("nopreempt", text, "remove nopreempt, and give both machines the same priority: then the address stays where it is, too"));
        }
        let skew_s = instance.advert_s * f64::from(256_u32.saturating_sub(instance.priority)) / 256.0;
        let moves_s = script.interval_s * f64::from(script.fall) + 3.0 * instance.advert_s + skew_s;
        if moves_s > MOVE_S_MAX {
            let text = format!(
                "{name}: the address of a dead pooler moves after up to {moves_s:.1} s: {} checks every {} s, then three adverts of {} s and {skew_s:.1} s",
                script.fall, script.interval_s, instance.advert_s
            );
            found.push(Finding::warning(
                "slow",
                text,
                "write fall 1, interval 1, vrrp_version 3 and advert_int 0.3",
            ));
        }
    }
    found
}

fn of_script(conf: &Conf, script: &Script) -> Vec<Finding> {
    let Script { name, command, .. } = script;
    let mut found = Vec::new();
    if let Some(interval) = script.interval.as_ref().filter(|text| text.parse::<u32>().is_err()) {
        let text = format!("{name}: keepalived 2.2 takes no interval of {interval} s, and ignores it");
        found.push(Finding::error("interval", text, "write interval 1"));
    }
    if !conf.has_script_user && !script.has_user {
        let text = format!(
            "{name}: without script_user the check runs as keepalived_script if that user exists, otherwise as root"
        );
        found.push(Finding::warning(
            "script_user",
            text,
            "write script_user keepalived_script to global_defs, and make that user",
        ));
    }
    let asks_postgres =
        ["psql", "pg_isready", "role=primary", "/primary"].iter().find(|word| command.contains(*word));
    if let Some(word) = asks_postgres {
        let text = format!(
            "{name}: the check ({word}) looks at PostgreSQL. When the primary is lost, it fails on both machines, and clients that pgweir holds may lose their connections"
        );
        found.push(Finding::error("checks_primary", text, "ask for /readyz without a role"));
    } else if !command.contains("/readyz") {
        let text = format!("{name}: the check does not name /readyz; what it looks at is not known here");
        found.push(Finding::note(
            "check",
            text,
            "see that it fails while pgweir drains, and not while pgweir is paused",
        ));
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    let is_curl = words.first().is_some_and(|program| program.ends_with("curl"));
    let fails = |word: &&str| word.starts_with("--fail") || is_short_with(word, 'f');
    if is_curl && !words.iter().any(fails) {
        let text = format!(
            "{name}: without --fail curl succeeds with status 503, so a pooler that drains counts as ready"
        );
        found.push(Finding::error("curl", text, "write curl --silent --fail"));
    }
    found
}

/// Returns whether a word is `-f`, or several short options that include this one.
fn is_short_with(word: &str, option: char) -> bool {
    word.strip_prefix('-').is_some_and(|rest| !rest.starts_with('-') && rest.contains(option))
}

/// Returns findings about settings that do not fit between the two machines.
fn against(instance: &Instance, one: &Conf, other: &Conf) -> Vec<Finding> {
    let Instance { name, .. } = instance;
    let twin = other.instances.iter().find(|twin| twin.router_id == instance.router_id);
    let Some(twin) = twin else {
        let text = format!(
            "{name}: the other machine has no instance with this virtual_router_id: both would take the address"
        );
        return vec![Finding::error("router_id", text, "write the same virtual_router_id on both machines")];
    };
    let mut found = Vec::new();
    let mut differs = |code, what: &str| {
        let text = format!("{name}: {what} differs between the machines");
        found.push(Finding::error(code, text, format!("write the same {what} on both machines")));
    };
    if instance.version != twin.version {
        differs("version", "vrrp_version");
    }
    if instance.version == 2 && (instance.advert_s - twin.advert_s).abs() > f64::EPSILON {
        differs("advert", "advert_int");
    }
    if instance.addresses != twin.addresses {
        differs("addresses", "virtual_ipaddress");
    }
    let apart = instance.priority.abs_diff(twin.priority);
    if apart > 0 {
        let text = format!(
            "{name}: the priorities {} and {} differ: the machine with the higher one takes the address back when it returns",
            instance.priority, twin.priority
        );
        found.push(Finding::warning("priority", text, "give both machines the same priority"));
    }
    let weights =
        instance.tracked.iter().filter_map(|(name, weight)| weight.or(Some(one.script(name)?.weight)));
    for weight in weights.filter(|weight| *weight != 0 && weight.unsigned_abs() <= apart) {
        let text = format!(
            "{name}: a weight of {weight} does not outweigh the priorities {} and {}: the address does not move",
            instance.priority, twin.priority
        );
        found.push(Finding::error("weight", text, "give both machines the same priority"));
    }
    for (from, to) in [(instance, twin), (twin, instance)] {
        if let Some(source) =
            from.source.as_ref().filter(|source| !to.peers.is_empty() && !to.peers.contains(source))
        {
            let text = format!(
                "{name}: {source} is no unicast_peer of the other machine, which then takes the address as well"
            );
            found.push(Finding::error(
                "peers",
                text,
                format!("write {source} to the other machine's unicast_peer"),
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, Pair};
    use super::*;

    fn files() -> [String; 2] {
        let machine = |n: u8| Machine { address: [10, 0, 0, n].into(), interface: "eth0".to_owned() };
        let pair = Pair {
            address: ([10, 0, 0, 9].into(), 24),
            router_id: 51,
            here: machine(1),
            peer: machine(2),
            url: "http://127.0.0.1:9127/readyz".to_owned(),
        };
        [pair.file(false), pair.file(true)]
    }

    fn codes(texts: &[&str]) -> Vec<&'static str> {
        let files: Vec<(&str, &str)> = texts.iter().map(|text| ("file", *text)).collect();
        inspect(&files).expect("it can be read").iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn each_fault_of_a_file_is_found() {
        let [good, _] = files();
        let changes = [
            ("state BACKUP", "state MASTER", "state_master"),
            ("state BACKUP", "state BACKUP\n    nopreempt", "nopreempt"),
            ("weight -20", "", "no_weight"),
            ("interval 1", "interval 3", "slow"),
            ("interval 1", "interval 0.5", "interval"),
            ("vrrp_version 3", "", "fraction"),
            ("vrrp_version 3", "vrrp_version 3\nvrrp_strict", "strict"),
            ("advert_int 0.3", "advert_int 1", "slow"),
            ("script_user keepalived_script", "", "script_user"),
            ("enable_script_security", "", "script_security"),
            ("--fail", "", "curl"),
            ("/readyz", "/readyz?cluster=main&role=primary", "checks_primary"),
            ("/usr/bin/curl", "/usr/bin/pg_isready", "checks_primary"),
            ("/readyz", "/healthz", "check"),
            ("        pgweir_ready", "        pgweir", "no_script"),
            ("        pgweir_ready", "", "no_check"),
            ("unicast_peer {\n        10.0.0.2\n    }", "", "multicast"),
            ("10.0.0.9/24 dev eth0", "10.0.0.9", "no_prefix"),
            ("10.0.0.9/24 dev eth0", "", "no_address"),
            ("virtual_router_id 51", "", "no_router_id"),
            ("interface eth0", "", "no_interface"),
            ("advert_int 0.3", "advert_int 0.3\nauthentication {\nauth_type PASS\n}", "authentication"),
            ("global_defs", "include /etc/keepalived/conf.d/*.conf\nglobal_defs", "includes"),
        ];
        for (from, to, code) in changes {
            assert!(good.contains(from), "{from}");
            let found = codes(&[&good.replacen(from, to, 1)]);
            assert!(found.contains(&code), "{code}: {found:?}");
        }
        assert_eq!(codes(&[""]), ["no_instance"]);
    }

    #[test]
    fn files_that_do_not_fit_are_found() {
        let [one, other] = files();
        let changes = [
            ("virtual_router_id 51", "virtual_router_id 52", "router_id"),
            ("priority 100", "priority 101", "priority"),
            ("priority 100", "priority 150", "weight"),
            ("10.0.0.9/24", "10.0.0.8/24", "addresses"),
            ("unicast_peer {\n        10.0.0.1", "unicast_peer {\n        10.0.0.3", "peers"),
            ("vrrp_version 3", "vrrp_version 2", "version"),
        ];
        for (from, to, code) in changes {
            assert!(other.contains(from), "{from}");
            let found = codes(&[&one, &other.replacen(from, to, 1)]);
            assert!(found.contains(&code), "{code}: {found:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let refused =
            inspect(&[("a.conf", "vrrp_instance a {\n")]).map_err(|(name, error)| (name, error.line));
        assert_eq!(refused, Err(("a.conf".to_owned(), 1)));
    }
}
