//! `pgweir node add`: a new standby from a copy.

use super::checks::{self, Servers};
use super::copy::{self, Folders, Mark};
use super::join;
use super::local::Local;
use super::programs::shell_quoted;
use super::settings;
use super::{Fault, Work};

/// Adds the node.
pub(super) fn add(work: &mut Work<'_>) -> Result<(), Fault> {
    let mut servers = checks::servers(work)?;
    let local = checks::local(work, &servers)?;
    clear_left_over(work)?;
    if is_own_copy(work, &servers, &local) {
        let text =
            format!("{} is a copy that this command has made; it goes on with it", local.data.display());
        work.say("copy", &text);
        let has_slot = servers.primary.slot(&work.wanted.slot).map_err(Fault::Unusable)?.is_some();
        checks::slots_of_primary(&servers, has_slot)?;
        join::make_slot(work, &mut servers.primary, has_slot)?;
    } else {
        refuse_serving_node(work)?;
        let folders = checks::folders(work)?;
        let has_slot = join::look_at_slot(work, &mut servers.primary)?;
        checks::copy(work, &mut servers, has_slot)?;
        make_copy(work, &mut servers, &local, &folders, has_slot)?;
    }
    finish(work, &mut servers, &local)
}

/// Everything after the data directory is a copy of the cluster.
pub(super) fn finish(work: &mut Work<'_>, servers: &mut Servers, local: &Local<'_>) -> Result<(), Fault> {
    join::configure(work, servers, local)?;
    join::start(work, local)?;
    join::wait_for_stream(work, servers, local)?;
    join::attach(work)
}

/// Makes the slot and the copy. If the copy fails, both are undone.
pub(super) fn make_copy(
    work: &Work<'_>,
    servers: &mut Servers,
    local: &Local<'_>,
    folders: &Folders,
    has_slot: bool,
) -> Result<(), Fault> {
    let is_slot_ours = join::make_slot(work, &mut servers.primary, has_slot)?;
    // A slot of the primary is unknown to a standby: there, the copy has a temporary one.
    let slot = servers.is_source_primary().then_some(work.wanted.slot.as_str());
    let call = copy::call(work, &local.programs, &servers.source().member, slot);
    if work.only_shows(&call.line()) {
        return Ok(());
    }
    let mark = Mark::set(local.data, folders);
    let failed = match copy::copy(work, &call) {
        Ok(summary) => match settings::write(local.data, &join::entries(work, servers)) {
            Ok(()) => {
                mark.remove();
                work.say("copy", &format!("{summary}, from {}", servers.source().member.place()));
                return Ok(());
            }
            Err(error) => format!("{}: {error}", local.data.display()),
        },
        Err(why) => why,
    };
    let mut text = vec![failed];
    match folders.clear() {
        Ok(()) => {
            mark.remove();
            text.push(format!("undone: the half copy in {} is removed", local.data.display()));
        }
        Err(why) => text.push(format!("left: a half copy: {why}")),
    }
    if is_slot_ours {
        text.push(join::undo_slot(work, servers));
    }
    Err(Fault::Failed(text.join("\n")))
}

/// Removes what a killed process of this command has left.
pub(super) fn clear_left_over(work: &Work<'_>) -> Result<(), Fault> {
    let Some((mark, folders)) = Mark::left_over(&work.wanted.data).map_err(Fault::Refused)? else {
        return Ok(());
    };
    let shown = work.wanted.data.display().to_string();
    if work.wanted.is_dry_run {
        // Only the command itself knows which of the directories were there before.
        return Err(Fault::Refused(format!(
            "{shown} has half a copy, which the command without --dry-run removes: rm -r {}",
            shell_quoted(&shown)
        )));
    }
    folders.clear().map_err(Fault::Failed)?;
    mark.remove();
    work.say("copy", &format!("{shown} had half a copy from a call that was killed; it is removed"));
    Ok(())
}

/// Whether the directory is a standby's that this command has made for this node: then the steps behind the copy are repeated.
fn is_own_copy(work: &Work<'_>, servers: &Servers, local: &Local<'_>) -> bool {
    let has_slot = settings::of_standby(local.data, "primary_slot_name").as_ref() == Some(&work.wanted.slot);
    let is_same =
        |control: super::local::Control| control.system_identifier == servers.facts.system_identifier;
    has_slot && local.control().is_ok_and(is_same)
}

/// A node that serves has its machine already.
fn refuse_serving_node(work: &Work<'_>) -> Result<(), Fault> {
    match work.members.get(&work.wanted.node) {
        Some(member) if ["primary", "standby"].contains(&member.state.as_str()) => {
            Err(Fault::Refused(format!(
                "{} is a {} of the cluster already; to make it again: pgweir node rebuild",
                member.place(),
                member.state
            )))
        }
        _ => Ok(()),
    }
}
