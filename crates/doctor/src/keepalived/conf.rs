//! The part of keepalived's file that is about VRRP, with the defaults that keepalived takes.

use super::syntax::{Statement, SyntaxError, parse};

/// A file of keepalived's.
#[derive(Debug, Default)]
pub(super) struct Conf {
    pub(super) has_script_user: bool,
    pub(super) has_script_security: bool,
    pub(super) is_strict: bool,
    /// `true` if the file includes other files, which are not read.
    pub(super) includes: bool,
    pub(super) scripts: Vec<Script>,
    pub(super) instances: Vec<Instance>,
}

/// A `vrrp_script`.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) name: String,
    pub(super) command: String,
    /// The interval as the file has it; `None` if it has none.
    pub(super) interval: Option<String>,
    pub(super) interval_s: f64,
    pub(super) fall: u32,
    pub(super) weight: i32,
    pub(super) has_user: bool,
}

/// A `vrrp_instance`.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) name: String,
    pub(super) version: u8,
    pub(super) is_master: bool,
    pub(super) is_nopreempt: bool,
    pub(super) router_id: Option<String>,
    pub(super) interface: Option<String>,
    pub(super) priority: u32,
    pub(super) advert_s: f64,
    pub(super) source: Option<String>,
    pub(super) peers: Vec<String>,
    pub(super) addresses: Vec<String>,
    pub(super) has_authentication: bool,
    /// The scripts that the instance tracks, each with its weight here.
    pub(super) tracked: Vec<(String, Option<i32>)>,
}

impl Conf {
    pub(super) fn read(text: &str) -> Result<Conf, SyntaxError> {
        let file = parse(text)?;
        let global = file.iter().filter(|block| block.keyword() == "global_defs");
        let is_set = |keyword| global.clone().any(|block| block.has(keyword));
        let version = global.clone().find_map(|block| block.value("vrrp_version"));
        let version = version.and_then(|version| version.parse().ok()).unwrap_or(2);
        Ok(Conf {
            has_script_user: is_set("script_user"),
            has_script_security: is_set("enable_script_security"),
            is_strict: is_set("vrrp_strict"),
            includes: file.iter().any(|line| line.keyword().starts_with("include")),
            scripts: named(&file, "vrrp_script").map(Script::of).collect(),
            instances: named(&file, "vrrp_instance").map(|block| Instance::of(block, version)).collect(),
        })
    }

    pub(super) fn script(&self, name: &str) -> Option<&Script> {
        self.scripts.iter().find(|script| script.name == name)
    }
}

fn named<'a>(file: &'a [Statement], keyword: &'a str) -> impl Iterator<Item = &'a Statement> {
    file.iter().filter(move |block| block.keyword() == keyword)
}

fn number<T: std::str::FromStr>(block: &Statement, keyword: &str, default: T) -> T {
    block.value(keyword).and_then(|text| text.parse().ok()).unwrap_or(default)
}

impl Script {
    fn of(block: &Statement) -> Script {
        let command = block.get("script").map(|line| line.words[1..].join(" "));
        Script {
            name: block.argument().unwrap_or_default().to_owned(),
            command: command.unwrap_or_default(),
            interval: block.value("interval").map(str::to_owned),
            interval_s: number(block, "interval", 1.0),
            fall: number(block, "fall", 1),
            weight: number(block, "weight", 0),
            has_user: block.has("user"),
        }
    }
}

impl Instance {
    fn of(block: &Statement, version: u8) -> Instance {
        let text = |keyword| block.value(keyword).map(str::to_owned);
        let lines =
            |keyword| block.get(keyword).map(|block| block.inner.as_slice()).unwrap_or_default().iter();
        let tracked = lines("track_script").map(|line| {
            let place = line.words.iter().position(|word| word == "weight");
            let weight = place.and_then(|place| line.words.get(place + 1)?.parse().ok());
            (line.keyword().to_owned(), weight)
        });
        Instance {
            name: block.argument().unwrap_or_default().to_owned(),
            version: number(block, "version", version),
            is_master: block.value("state") == Some("MASTER"),
            is_nopreempt: block.has("nopreempt"),
            router_id: text("virtual_router_id"),
            interface: text("interface"),
            priority: number(block, "priority", 100),
            advert_s: number(block, "advert_int", 1.0),
            source: text("unicast_src_ip").or_else(|| text("mcast_src_ip")),
            peers: lines("unicast_peer").map(|line| line.keyword().to_owned()).collect(),
            addresses: lines("virtual_ipaddress").map(|line| line.keyword().to_owned()).collect(),
            has_authentication: block.has("authentication"),
            tracked: tracked.collect(),
        }
    }
}
