//! Paths of the machine that runs take rarely, by name. A test that never takes such a path says nothing about it, so the simulator and the
//! random sessions count them ([`Driver::reached`](crate::driver::Driver::reached)), and report those that no run took.
//!
//! The machine's decisions never depend on these counts.

/// The test runs that must take a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The simulator's plan of one server must take the path within 2,000 seeds.
    Seeds,
    /// The simulator's plan of a cluster must take the path within 2,000 seeds.
    ClusterSeeds,
    /// The simulator's plan of a query cache must take the path within 2,000 seeds.
    CacheSeeds,
    /// Only a scripted conversation takes the path: the simulator's clients do not do what leads to it.
    Conversations,
}

macro_rules! rare_paths {
    ($($(#[$doc:meta])* $path:ident: $reach:ident, $name:literal;)*) => {
        /// A retry, requeue, eviction, fallback, refusal or limit of the machine.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum RarePath {
            $($(#[$doc])* $path,)*
        }

        impl RarePath {
            /// Every path, in the order of the table.
            pub const ALL: &'static [RarePath] = &[$(RarePath::$path),*];

            /// The path as reports name it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(RarePath::$path => $name,)*
                }
            }

            /// The runs that must take the path.
            #[must_use]
            pub fn reach(self) -> Reach {
                match self {
                    $(RarePath::$path => Reach::$reach,)*
                }
            }
        }
    };
}

rare_paths! {
    /// The server owes the maximum number of answers, and pgweir does not read from the client until it owes fewer.
    LedgerFull: Seeds, "a client waited because its server owed too many answers";
    /// The server owes fewer answers, and the client that waited for that goes on.
    LedgerShorter: Seeds, "a client went on because its server owed fewer answers";
    /// The client's connection has ended, and the client stays until the messages ahead of its Terminate are sent.
    Departed: Seeds, "a client stayed for what it had sent ahead of its Terminate";
    /// A client has left its server while PostgreSQL runs a statement: the server counts until that is over.
    Abandoned: Seeds, "a server was left while it ran a statement";
    /// PostgreSQL is asked to cancel the statement of a client that is gone.
    AbandonedCanceled: Seeds, "a statement without client was canceled";
    /// The client sent more than pgweir keeps while the client waits, so pgweir stops reading from it.
    InboxFull: Seeds, "a client was paused because too much of it waited";
    /// The client's server does not read as fast as the client sends.
    ServerBacklog: Seeds, "a client was paused because its server did not read";
    /// The client does not read its answers as fast as the server sends them.
    ClientBacklog: Seeds, "a server was paused because its client did not read";
    /// A paused client is read again.
    ReadAgain: Seeds, "a paused client was read again";
    /// The session of a client was refused by a server, and another server is tried.
    SessionRefused: Seeds, "a client got another server because its session was refused";
    /// A group that was queued behind another client's runs elsewhere.
    PutBack: Seeds, "a queued group was put back";
    /// The statement at the head takes long, so the groups behind it run elsewhere.
    Rescued: Seeds, "queued groups left a head that took long";
    /// A stranger's cancel request may have hit the statement, so it runs again.
    StrangersCancel: Conversations, "a statement ran again after a stranger's cancel request";
    /// A read that a standby refused, or did not answer, runs on the primary.
    SecondTry: ClusterSeeds, "a read ran on the primary after a standby";
    /// A client has sent BEGIN and, after it, a group that a standby may run: pgweir answers BEGIN without a server.
    BegunWithGroup: ClusterSeeds, "a transaction whose BEGIN came with its first group could read at a standby";
    /// Only a part of the transaction's first message group has arrived. The whole group decides where the transaction runs.
    AwaitsFirstGroup: ClusterSeeds, "a client waited for the rest of its transaction's first group";
    /// A transaction that has read at a standby goes on at the primary.
    LeftStandby: ClusterSeeds, "a transaction left its standby for the primary";
    /// The server of a read was lost, and the read runs on another one.
    ReadAfterLoss: ClusterSeeds, "a read ran again after its server was lost";
    /// The primary was lost at COMMIT, and the new primary is asked for the outcome.
    OutcomeAsked: ClusterSeeds, "the outcome of a lost COMMIT was asked for";
    /// The primary is deposed, and its server is closed at once during a statement.
    ServerDeposed: ClusterSeeds, "a server of a deposed primary was ended at its work";
    /// The primary is deposed, but its server finishes a read that its client has seen in part, or a question of pgweir's own.
    ReadAtDeposed: Conversations, "a read went on to its end at a deposed primary";
    /// A read is lost with its server and cannot run again: its client has seen a part of it, or has lost too many servers with it.
    ReadInterrupted: ClusterSeeds, "a client was told that its read was interrupted";
    /// A read is lost with its server after it was queued there behind another client's.
    QueuedReadAgain: Conversations, "a read that had been queued ran again after its server was lost";
    /// The server of an open transaction was lost, and the client was told that the transaction is rolled back.
    RolledBackByLoss: ClusterSeeds, "a client was told that its transaction is rolled back";
    /// A server refused to say what its session holds, and is asked once more.
    AuditAgain: Conversations, "a session was audited again after an error";
    /// A free server of another pool is closed for a limit that both share.
    ServerEvicted: Seeds, "a free server was closed for another pool";
    /// Kept answers give way to a newer one.
    CacheEvicted: CacheSeeds, "a kept answer gave way to another one";
    /// The answer to a statement of a rule is too long to be kept.
    CacheTooLong: CacheSeeds, "an answer was too long to be kept";
    /// The answer to a statement of a rule is an error, or has a message in it that was not asked for.
    CacheUnfit: CacheSeeds, "an answer was not fit to be kept";
    /// The answer to a waiting client's statement becomes known before its turn in the queue.
    CacheHitInQueue: CacheSeeds, "a waiting client was answered from the cache";
    /// A client waits for the answer to another client's statement, and takes no server.
    CacheWaitForSame: CacheSeeds, "a client waited for another client's answer";
    /// A server's answer is compared with the one that is kept (`query_cache_verify`).
    CacheCompared: CacheSeeds, "a kept answer was compared with a server's";
    /// A client with an open transaction of which no server knows yet sends a statement whose answer is known.
    CacheHitInTransaction: CacheSeeds, "a statement in a transaction was answered from the cache";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::RarePath;

    #[test]
    fn names_are_told_apart() {
        let names: HashSet<&str> = RarePath::ALL.iter().map(|path| path.name()).collect();
        assert_eq!(names.len(), RarePath::ALL.len());
    }
}
