//! The settings of a virtual address, and what follows from them.

use std::net::IpAddr;
use std::time::Duration;

use pgweir_settings::{HttpPlace, Main, SourceUrl, VipAddress};

use crate::sources::Login;

/// The settings of a virtual address. If they change, another duty begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Spec {
    pub(super) address: VipAddress,
    pub(super) interface: String,
    pub(super) ttl: Duration,
    pub(super) commands: Option<Commands>,
    pub(super) endpoints: Vec<SourceUrl>,
    pub(super) login: Option<Login>,
    place: HttpPlace,
    http_has_tls: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Commands {
    pub(super) up: String,
    pub(super) down: String,
}

impl Spec {
    /// Returns the spec; `None` if there is no virtual address. Faults were refused when the file was loaded; SET does not check them.
    pub(super) fn of(main: &Main) -> Option<Spec> {
        let (up, down) = (main.vip_up_command.clone(), main.vip_down_command.clone());
        Some(Spec {
            address: VipAddress::parse(&main.vip).ok()?,
            interface: main.vip_interface.clone(),
            ttl: main.vip_ttl,
            commands: (!up.is_empty() && !down.is_empty()).then_some(Commands { up, down }),
            endpoints: main.etcd_endpoints.iter().filter_map(|text| SourceUrl::parse(text).ok()).collect(),
            login: Login::of(main.etcd_user.as_ref(), main.etcd_password.as_ref()),
            place: HttpPlace::of(&main.http_listen)?,
            http_has_tls: !main.http_tls_cert_file.is_empty(),
        })
    }

    /// The time between two rounds.
    pub(super) fn period(&self) -> Duration {
        (self.ttl / 10).clamp(Duration::from_millis(200), Duration::from_secs(1))
    }

    /// The longest time that a pooler is waited for that is asked whether it has the address.
    pub(super) fn question_lasts(&self) -> Duration {
        (self.ttl / 6).min(Duration::from_secs(1))
    }

    /// The lifetime of the address in the kernel, which ends about a second after the lease. Until then the machine of a dead process refuses
    /// clients, which try again and find the next pooler. If the address ended before the lease, a client's first packet would be lost until the
    /// next pooler has the address, and TCP sends it again only after a second, and then after two.
    pub(super) fn lifetime_s(&self) -> u32 {
        u32::try_from(self.ttl.as_secs()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Returns the name of this pooler: the address of its HTTP server.
    pub(super) fn name(&self, own: Option<IpAddr>) -> Option<String> {
        let host = self.place.host.clone().or_else(|| own.map(|ip| ip.to_string()))?;
        Some(SourceUrl { tls: self.http_has_tls, host, port: self.place.port }.to_string())
    }
}
