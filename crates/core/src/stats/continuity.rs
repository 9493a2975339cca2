//! The counters of session continuity for a pool's clients.

/// Counters since the pool was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuity {
    /// The number of times that a server was brought to a client's session in the packet of its statement.
    pub replays: u64,
    /// The number of times that a server was asked for the state of its session, because its client may have changed it.
    pub audits: u64,
    /// Changes of sessions that needed no question: the same statement was asked about before.
    pub remembered: u64,
    /// The number of times that a client began to keep its server.
    pub pins: u64,
    /// The number of released servers that were asked for the state of their sessions (`session_audit_sample`).
    pub session_checks: u64,
    /// The number of these servers whose session was not in the expected state; they were closed.
    pub differences: u64,
}

impl Continuity {
    /// The counters by name, as SHOW POOLS_EXTENDED and the metrics list them, with a sentence for each.
    #[must_use]
    pub fn each(&self) -> [(&'static str, &'static str, u64); 6] {
        [
            (
                "session_replays",
                "Servers that were brought to a client's session with its statement",
                self.replays,
            ),
            ("session_audits", "Servers that were asked what a client left in their session", self.audits),
            (
                "session_remembered",
                "Changes of sessions whose outcome was known without asking",
                self.remembered,
            ),
            ("session_pins", "Clients that began to keep their server between transactions", self.pins),
            ("session_checks", "Released servers whose session was checked", self.session_checks),
            ("session_differences", "Of these, sessions that were not what they should be", self.differences),
        ]
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(&self, other: &Continuity) -> Continuity {
        Continuity {
            replays: self.replays + other.replays,
            audits: self.audits + other.audits,
            remembered: self.remembered + other.remembered,
            pins: self.pins + other.pins,
            session_checks: self.session_checks + other.session_checks,
            differences: self.differences + other.differences,
        }
    }
}
