//! `pgweir node remove`: the node takes no part, and its slot keeps no WAL.

use super::join;
use super::server::drop_slot;
use super::{Fault, Work};

/// Detaches the node, drops its slot, and says what is left to do by hand.
pub(super) fn remove(work: &mut Work<'_>) -> Result<(), Fault> {
    let wanted = work.wanted;
    let mut others = Vec::new();
    if work.members.primary.as_deref() == Some(wanted.node.as_str()) {
        return Err(Fault::Refused(format!(
            "{} is the primary; first: SWITCHOVER {} TO another node",
            wanted.full_name(),
            wanted.cluster
        )));
    }
    let mut primary = work.primary(&mut others)?;
    leave(work)?;
    let (slot, place) = (&wanted.slot, primary.member.place());
    match primary.slot(slot).map_err(Fault::Refused)? {
        None => work.say("slot", &format!("{slot} is not there on {place}")),
        Some(_) if work.only_shows_sql(&primary, &drop_slot(slot)) => {}
        Some(found) if found.is_active && primary.streaming(slot).map_err(Fault::Unusable)?.is_some() => {
            return Err(Fault::Failed(format!(
                "the slot {slot} is in use: the standby still streams from {place}\nleft: stop PostgreSQL on the machine of {}, and run the command again",
                wanted.node
            )));
        }
        Some(_) => {
            join::drop_unused(work, &mut primary).map_err(Fault::Failed)?;
            work.say("slot", &format!("{slot} is dropped on {place}"));
        }
    }
    work.say("next", &left_to_do(work));
    Ok(())
}

/// Lets the node's transactions end, and detaches it.
pub(super) fn leave(work: &mut Work<'_>) -> Result<(), Fault> {
    let (name, wanted) = (work.wanted.full_name(), work.wanted);
    if !work.members.has_console() || work.members.get(&wanted.node).is_none() {
        return Ok(());
    }
    let is_serving = work.members.get(&wanted.node).is_some_and(|member| member.state == "standby");
    for verb in if is_serving { &["DRAIN", "DETACH"][..] } else { &["DETACH"][..] } {
        if !work.only_shows_ctl(verb) {
            work.members
                .switch(verb, wanted)
                .map_err(|why| Fault::Failed(format!("{verb} NODE {name}: {why}")))?;
        }
    }
    work.say("detach", &format!("{name} takes no part"));
    Ok(())
}

fn left_to_do(work: &Work<'_>) -> String {
    let wanted = work.wanted;
    let names: Vec<&str> = work.members.list.iter().map(|member| member.name.as_str()).collect();
    let listed = match (names.contains(&wanted.node.as_str()), work.members.discovery.as_str()) {
        (false, _) => String::new(),
        (true, "dns") => ", take its address out of the cluster's host name".to_owned(),
        (true, _) => format!(
            ", take {name} out of nodes= of {} and out of [nodes], and RELOAD each pooler",
            wanted.cluster,
            name = wanted.node
        ),
    };
    format!("on the machine of {}: stop PostgreSQL and remove its data directory{listed}", wanted.node)
}
