//! `discovery=patroni`: Patroni's REST API. One agent returns the list, but the role of each node comes from
//! its own agent, because the list of an agent that is cut off from the others is old.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgweir_core::source::{SourceMember, SourceRole, SourceWord};
use pgweir_settings::{SourceUrl, is_allowed_host};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::http::{Call, basic};
use super::json::{self, is_host, is_name, quoted, text, too_many};
use super::{Agents, Hurry, Spec, World};

/// The minimum interval of questions while no primary takes work, or no agent names one.
const HURRY_MIN: Duration = Duration::from_millis(100);

/// The time that Patroni may take for a switchover. It gives up by itself after about 20 s
/// (`poll_failover_result` in its api.py).
const SWITCHOVER_MAX: Duration = Duration::from_secs(60);

/// The roles of nodes, as their agents report them.
type Roles = BTreeMap<Arc<str>, SourceRole>;

/// A node in an agent's list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Listed {
    pub(super) name: Arc<str>,
    pub(super) host: Arc<str>,
    pub(super) port: u16,
    /// The node's agent; `None` if pgweir may not ask it.
    pub(super) agent: Option<SourceUrl>,
}

pub(super) async fn ask(
    spec: &Spec,
    world: &Rc<World>,
    configured: &[SourceUrl],
    agents: &Agents,
    hurry: &Hurry,
) {
    let mut known: Vec<Listed> = Vec::new();
    let mut roles = Roles::new();
    loop {
        let began = Instant::now();
        let hurries = hurry.is_on.get() || leader(&roles).is_none();
        let asked_first = leader(&roles).and_then(|leader| agents.borrow().get(leader).cloned());
        let (answers, list) = tokio::join!(
            roles_of(spec, world, &known, &roles, hurries),
            list_of(
                spec,
                world,
                asked_first.into_iter().chain(urls(&known, &roles)).chain(configured.iter().cloned())
            )
        );
        roles = answers;
        let said = match list {
            Ok((by, list)) => {
                known = list;
                Ok(by)
            }
            // The nodes are known, and an agent answered for its node.
            Err(_) if roles.values().any(|role| *role != SourceRole::Silent) => Ok("its agents".into()),
            Err(why) => Err(why),
        };
        *agents.borrow_mut() =
            known.iter().filter_map(|one| Some((Arc::clone(&one.name), one.agent.clone()?))).collect();
        // The agent of a node that is new in the list was not asked yet.
        let is_new = known.iter().any(|one| !roles.contains_key(&one.name));
        if is_new && said.is_ok() {
            continue;
        }
        world.report(spec, said.map(|by| word(by, &known, &roles)));
        let hurries = hurry.is_on.get() || leader(&roles).is_none();
        let pause = if hurries { hurried(spec) } else { spec.interval };
        hurry.pause(pause.saturating_sub(began.elapsed())).await;
    }
}

/// Returns the interval of questions while there is no primary that takes work, or no agent names one.
fn hurried(spec: &Spec) -> Duration {
    (spec.interval / 10).max(HURRY_MIN).min(spec.interval)
}

/// Returns the node whose agent reports that it holds the leader's lock.
fn leader(roles: &Roles) -> Option<&Arc<str>> {
    roles.iter().find(|(_, role)| **role == SourceRole::Primary).map(|(name, _)| name)
}

/// Asks Patroni for a switchover. Patroni answers when it is done, or when it gives up.
pub(super) async fn switch_over(
    spec: &Spec,
    world: &World,
    agent: &SourceUrl,
    from: &str,
    to: &str,
) -> Result<(), String> {
    let body = json!({"leader": from, "candidate": to}).to_string();
    let call = Call::post("/switchover", body).with(spec.login.as_ref().map(basic));
    let reply = world.client.call(agent, call, SWITCHOVER_MAX).await?;
    match reply.status {
        200 => Ok(()),
        401 | 403 => Err(format!(
            "{agent}: status {}: {} (patroni_user, patroni_password)",
            reply.status,
            quoted(&reply.body)
        )),
        status => Err(format!("{agent}: status {status}: {}", quoted(&reply.body))),
    }
}

/// Returns the agents, those that have answered before the others.
fn urls(known: &[Listed], roles: &Roles) -> impl Iterator<Item = SourceUrl> {
    let is_silent = |one: &&Listed| roles.get(&one.name) == Some(&SourceRole::Silent);
    let (silent, others): (Vec<&Listed>, Vec<&Listed>) = known.iter().partition(is_silent);
    let agents: Vec<SourceUrl> =
        others.into_iter().chain(silent).filter_map(|one| one.agent.clone()).collect();
    agents.into_iter()
}

fn word(by: Arc<str>, known: &[Listed], roles: &Roles) -> SourceWord {
    let member = |one: &Listed| SourceMember {
        name: Arc::clone(&one.name),
        host: Arc::clone(&one.host),
        port: one.port,
        role: roles.get(&one.name).copied().unwrap_or(SourceRole::Silent),
    };
    SourceWord { by, members: known.iter().map(member).collect(), announced: None }
}

/// Asks the agents of all nodes for their roles, at the same time. `before` has their last answers. The first
/// agent that names another leader is reported at once, because the answers of the others may take long.
async fn roles_of(spec: &Spec, world: &Rc<World>, known: &[Listed], before: &Roles, hurries: bool) -> Roles {
    let mut asked = JoinSet::new();
    for one in known {
        let (name, agent) = (Arc::clone(&one.name), one.agent.clone());
        // The other answers do not wait for the agent of a machine that is gone.
        let is_silent = before.get(&name) == Some(&SourceRole::Silent);
        let limit = if hurries && is_silent { hurried(spec).min(spec.timeout) } else { spec.timeout };
        let world = Rc::clone(world);
        asked.spawn_local(async move {
            let role = match agent {
                None => SourceRole::Silent,
                // The answer is 200 while the node holds the leader's lock, and 503 if it does not.
                Some(agent) => match world.client.call(&agent, Call::get("/primary"), limit).await {
                    Ok(reply) if reply.status == 200 => SourceRole::Primary,
                    Ok(reply) if reply.status == 503 => SourceRole::Other,
                    _ => SourceRole::Silent,
                },
            };
            (name, role)
        });
    }
    let mut roles = Roles::new();
    while let Some(done) = asked.join_next().await {
        let Ok((name, role)) = done else { continue };
        let is_news = role == SourceRole::Primary && leader(before) != Some(&name);
        roles.insert(name, role);
        if is_news && !asked.is_empty() {
            world.report(spec, Ok(word("its agents".into(), known, &roles)));
        }
    }
    roles
}

/// Returns the list of the first agent that gives one, and that agent.
async fn list_of(
    spec: &Spec,
    world: &World,
    agents: impl Iterator<Item = SourceUrl>,
) -> Result<(Arc<str>, Vec<Listed>), String> {
    let mut why = "no agent is known".to_owned();
    let mut tried: Vec<SourceUrl> = Vec::new();
    for agent in agents {
        if tried.contains(&agent) {
            continue;
        }
        let list = match world.client.call(&agent, Call::get("/cluster"), spec.timeout).await {
            Ok(reply) if reply.status == 200 => {
                read_list(&reply.body, &spec.allowed).map_err(|why| format!("{agent}: {why}"))
            }
            Ok(reply) => Err(format!("{agent}: status {}", reply.status)),
            Err(why) => Err(why),
        };
        match list {
            Ok(list) => return Ok((agent.to_string().into(), list)),
            Err(reason) => why = reason,
        }
        tried.push(agent);
    }
    Err(why)
}

/// Reads the answer to `GET /cluster`. Nodes that pgweir may not use are left out; if none is left, that is
/// an error.
fn read_list(bytes: &[u8], allowed: &[String]) -> Result<Vec<Listed>, String> {
    let answer = json::parse(bytes)?;
    let members = answer.get("members").and_then(Value::as_array).ok_or("the answer has no members")?;
    if let Some(fault) = too_many(members.len()) {
        return Err(fault);
    }
    let mut list: Vec<Listed> = Vec::new();
    let mut left_out = None;
    for member in members {
        // A node without a server has no address yet.
        let (Some(name), Some(host)) = (text(member, "name"), text(member, "host")) else { continue };
        let port = member.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        let Some(port) = port.filter(|port| *port > 0) else { continue };
        match refusal(name, host, allowed) {
            Some(why) => left_out = Some(why),
            None if list.iter().any(|one| *one.name == *name) => {
                left_out = Some(format!("{name} is named twice"));
            }
            None => {
                let agent = text(member, "api_url").and_then(|url| agent(url, allowed));
                list.push(Listed { name: name.into(), host: host.into(), port, agent });
            }
        }
    }
    match left_out {
        Some(why) if list.is_empty() => Err(why),
        _ => Ok(list),
    }
}

/// Returns the reason why a node of a source is not used; `None` if it is.
pub(super) fn refusal(name: &str, host: &str, allowed: &[String]) -> Option<String> {
    if !is_name(name) || !is_host(host) {
        return Some("a node's name or host has signs that it cannot have".to_owned());
    }
    (!is_allowed_host(allowed, host)).then(|| format!("{host} is not in allow_discovered_hosts"))
}

/// Returns the address of an agent from a source's URL, which has a path. `None` if pgweir may not ask it.
pub(super) fn agent(url: &str, allowed: &[String]) -> Option<SourceUrl> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split('/').next()?;
    let url = SourceUrl::parse(&format!("{scheme}://{authority}")).ok()?;
    (is_host(&url.host) && is_allowed_host(allowed, &url.host)).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIST: &str = r#"{"members": [
        {"name": "m1", "role": "leader", "state": "running", "api_url": "http://10.0.0.1:8008/patroni", "host": "10.0.0.1", "port": 5432},
        {"name": "m2", "role": "replica", "state": "streaming", "api_url": "http://10.9.0.1:8008/patroni", "host": "10.0.0.2", "port": 5433},
        {"name": "m3", "role": "replica", "state": "creating replica", "api_url": "http://10.0.0.3:8008/patroni"},
        {"name": "m4", "role": "replica", "state": "streaming", "host": "169.254.169.254", "port": 80}
    ], "scope": "main"}"#;

    fn allowed() -> Vec<String> {
        vec!["10.0.0.0/16".to_owned()]
    }

    #[test]
    fn a_list_has_the_nodes_that_may_be_used() {
        let list = read_list(LIST.as_bytes(), &allowed()).expect("a list");
        let seen: Vec<(&str, &str, u16, bool)> =
            list.iter().map(|one| (&*one.name, &*one.host, one.port, one.agent.is_some())).collect();
        // m2's agent, and all of m4, are at hosts that are not allowed.
        assert_eq!(seen, [("m1", "10.0.0.1", 5432, true), ("m2", "10.0.0.2", 5433, false)]);
        let none = read_list(LIST.as_bytes(), &["192.168.0.0/16".to_owned()]);
        assert!(none.expect_err("nothing is allowed").contains("allow_discovered_hosts"));
    }

    #[test]
    fn what_is_no_list_says_why() {
        for (text, why) in [
            ("{}", "no members"),
            ("[]", "no members"),
            ("{\"members\": 3}", "no members"),
            ("<html>", "no JSON"),
        ] {
            assert!(read_list(text.as_bytes(), &allowed()).expect_err(text).contains(why), "{text}");
        }
        let many = format!("{{\"members\": [{}]}}", vec!["{}"; 65].join(","));
        assert!(read_list(many.as_bytes(), &allowed()).expect_err("too many").contains("65 members"));
        let twice = r#"{"members": [{"name": "a", "host": "10.0.0.1", "port": 1}, {"name": "a", "host": "10.0.0.2", "port": 1}]}"#;
        assert_eq!(read_list(twice.as_bytes(), &allowed()).expect("the first counts").len(), 1);
    }

    #[test]
    fn addresses_of_agents() {
        let is = |url: &str| agent(url, &allowed()).map(|url| url.to_string());
        assert_eq!(is("https://10.0.0.1:8008/patroni").as_deref(), Some("https://10.0.0.1:8008"));
        assert_eq!(is("http://10.0.0.1:8008").as_deref(), Some("http://10.0.0.1:8008"));
        for bad in [
            "http://u:p@10.0.0.1:8008/",
            "http://127.0.0.1:8008/",
            "file:///etc/passwd",
            "http://10.0.0.1/",
            "",
        ] {
            assert_eq!(is(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(text in any::<String>(), name in any::<String>(), port in any::<i64>()) {
            let _ = read_list(text.as_bytes(), &allowed());
            let list = serde_json::json!({"members": [{"name": name, "host": text, "port": port, "api_url": text}]});
            for one in read_list(list.to_string().as_bytes(), &allowed()).unwrap_or_default() {
                prop_assert!(is_name(&one.name) && is_allowed_host(&allowed(), &one.host));
            }
        }
    }
}
