//! `discovery=dns`: a host name has the address of each node.

use std::time::Duration;

use pgweir_core::source::{SourceMember, SourceRole, SourceWord};
use tokio::time::sleep;

use super::{Spec, World};

/// The interval of look-ups, and the shorter one after a failure.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);
const LOOK_UP_AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn ask(spec: &Spec, world: &World, host: String, port: u16) {
    loop {
        let found = world.addresses(&host).await;
        let pause = if found.is_ok() { LOOK_UP_EVERY } else { LOOK_UP_AGAIN };
        world.report(spec, found.map(|addresses| word(&host, port, &addresses)));
        sleep(pause).await;
    }
}

fn word(host: &str, port: u16, addresses: &[std::net::IpAddr]) -> SourceWord {
    let mut names: Vec<String> = addresses.iter().map(|address| address.to_canonical().to_string()).collect();
    names.sort();
    names.dedup();
    let member = |name: &String| SourceMember {
        name: name.as_str().into(),
        host: name.as_str().into(),
        port,
        role: SourceRole::Untold,
    };
    SourceWord { by: host.into(), members: names.iter().map(member).collect(), announced: None }
}
