//! The actions of an administrator: commands of the console, carried out by the machines as if they were
//! typed there.

use hyper::StatusCode;
use pgweir_core::console::command::Command;
use pgweir_core::driver::Level;
use pgweir_core::view::Switch;
use serde_json::{Value, json};

use super::WebState;
use super::access::Reader;
use super::reply::{Refusal, Reply, json_reply};
use super::worker_rpc::NotDone;

/// Carries out an action.
pub(super) async fn act(
    web: &WebState,
    reader: &Reader,
    action: &str,
    body: &Value,
) -> Result<Reply, Refusal> {
    let command = command(action, body)?;
    let message = command.text();
    web.log.write(
        Level::Log,
        &format!("\"{message}\" over HTTP by {}", reader.user.as_deref().unwrap_or_default()),
    );
    let is_of_cluster =
        matches!(command, Command::SwitchNode { .. } | Command::Switchover { .. } | Command::Recheck(_));
    match web.worker_rpc.operate(command).await {
        Ok(_) => {
            if is_of_cluster {
                // The samples of every second would miss the first of two changes within one second.
                let _ = web.look_at_clusters().await;
            }
            Ok(json_reply(StatusCode::OK, &json!({ "done": true, "message": message })))
        }
        Err(NotDone::Late) => {
            Ok(json_reply(StatusCode::ACCEPTED, &json!({ "done": false, "message": message })))
        }
        Err(NotDone::Refused(text)) if text.starts_with("no such database") => {
            Err(Refusal::NotFound("There is no such database."))
        }
        Err(NotDone::Refused(text)) if text.starts_with("no such cluster") => {
            Err(Refusal::NotFound("There is no such cluster."))
        }
        Err(NotDone::Refused(text)) if text.contains(" has no node ") => {
            Err(Refusal::NotFound("There is no such node."))
        }
        Err(NotDone::Refused(text)) if text == "client not found" => {
            Err(Refusal::NotFound("There is no such client."))
        }
        Err(NotDone::Refused(text)) => Err(Refusal::Failed(text)),
    }
}

fn command(action: &str, body: &Value) -> Result<Command, Refusal> {
    let database = name(body, "database")?;
    let needed = |key| name(body, key)?.ok_or_else(|| Refusal::Bad(format!("\"{key}\" is needed")));
    let named = || needed("database");
    let switch = |to| Ok(Command::SwitchNode { to, cluster: needed("cluster")?, node: needed("node")? });
    Ok(match action {
        "pause" => Command::Pause(database),
        "resume" => Command::Resume(database),
        "reconnect" => Command::Reconnect(database),
        "kill" => Command::Kill(database),
        "disable" => Command::Disable(named()?),
        "enable" => Command::Enable(named()?),
        "reload" => Command::Reload,
        "attach" => switch(Switch::Attached)?,
        "drain" => switch(Switch::Draining)?,
        "detach" => switch(Switch::Detached)?,
        "recheck" => Command::Recheck(needed("cluster")?),
        "switchover" => Command::Switchover {
            cluster: needed("cluster")?,
            to: Some(needed("node")?),
            force: body.get("force").and_then(Value::as_bool).unwrap_or(false),
        },
        "cancel_switchover" => Command::Switchover { cluster: needed("cluster")?, to: None, force: false },
        "kill_client" => Command::KillClient(
            body.get("client")
                .and_then(Value::as_u64)
                .ok_or_else(|| Refusal::Bad("\"client\" must be a client's id".to_owned()))?,
        ),
        _ => return Err(Refusal::NotFound("There is no such action.")),
    })
}

/// Returns a name in the body; `None` if the key is missing.
fn name(body: &Value, key: &str) -> Result<Option<String>, Refusal> {
    match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) if !name.is_empty() => Ok(Some(name.clone())),
        Some(_) => Err(Refusal::Bad(format!("\"{key}\" must be a name"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_commands_with_what_they_need() {
        let none = json!({});
        assert_eq!(command("pause", &none), Ok(Command::Pause(None)));
        assert_eq!(command("pause", &json!({"database": "shop"})), Ok(Command::Pause(Some("shop".into()))));
        assert_eq!(command("kill_client", &json!({"client": 7})), Ok(Command::KillClient(7)));
        let node = json!({"cluster": "main", "node": "m1"});
        let drain = Command::SwitchNode { to: Switch::Draining, cluster: "main".into(), node: "m1".into() };
        assert_eq!(command("drain", &node), Ok(drain));
        assert_eq!(command("recheck", &node), Ok(Command::Recheck("main".into())));
        let switchover = |to: Option<&str>, force| Command::Switchover {
            cluster: "main".into(),
            to: to.map(Into::into),
            force,
        };
        assert_eq!(command("switchover", &node), Ok(switchover(Some("m1"), false)));
        let by_force = json!({"cluster": "main", "node": "m1", "force": true});
        assert_eq!(command("switchover", &by_force), Ok(switchover(Some("m1"), true)));
        assert_eq!(command("cancel_switchover", &node), Ok(switchover(None, false)));
        for (action, body) in [
            ("switchover", json!({"cluster": "main"})),
            ("attach", json!({"cluster": "main"})),
            ("detach", json!({"node": "m1"})),
            ("recheck", none.clone()),
            ("disable", none.clone()),
            ("pause", json!({"database": 7})),
            ("pause", json!({"database": ""})),
            ("kill_client", json!({"client": -1})),
        ] {
            assert!(matches!(command(action, &body), Err(Refusal::Bad(_))), "{action} {body}");
        }
        assert!(matches!(command("shutdown", &none), Err(Refusal::NotFound(_))));
    }
}
