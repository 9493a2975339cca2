//! Settings whose value is one of a few words.
//!
//! The words are PgBouncer's and read in any case, as PgBouncer reads them. A new word is a new line here.

use crate::Kind;
use crate::syntax::value::Value;

macro_rules! choice {
    ($(#[doc = $doc:literal])+ $Name:ident { $($(#[doc = $vdoc:literal])+ $Variant:ident = $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $Name {
            $($(#[doc = $vdoc])+ $Variant,)+
        }

        impl $Name {
            /// The words that may stand in the file.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word for this value.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$Variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl Value for $Name {
            fn parse(text: &str, _: Kind) -> Result<Self, String> {
                $(if text.eq_ignore_ascii_case($word) { return Ok(Self::$Variant); })+
                Err(format!("it must be one of {}", Self::WORDS.join(", ")))
            }

            fn show(&self, _: Kind) -> Option<String> {
                Some(self.as_str().to_owned())
            }

            fn unset() -> Self {
                // Every setting of this type has a default or may be unset; the first word is the most
                // careful one.
                [$(Self::$Variant),+][0]
            }
        }
    };
}

choice! {
    /// The commits that a client must see when it reads from a standby.
    CausalReads {
        /// The commits that the standby has replayed, whichever these are.
        Off = "off",
        /// The client's own commits, and nothing older than what the client has seen before.
        Session = "session",
        /// The commits of any client up to the time when the statement came.
        Database = "database",
    }
}

choice! {
    /// Whether pgweir keeps answers and gives them again without a server.
    QueryCache {
        /// pgweir keeps no answer.
        Off = "off",
        /// Of the same reads that wait for a server, one runs, and its answer is for all.
        Coalesce = "coalesce",
        /// pgweir keeps the answers to statements that match a rule of `[cache]` and ask for it in a comment.
        Hinted = "hinted",
        /// pgweir keeps the answers to statements that match a rule of `[cache]`.
        On = "on",
    }
}

choice! {
    /// The node on which a transaction begins, with `route=auto`, if its BEGIN does not say READ ONLY.
    BeginUndeclared {
        /// The primary.
        Primary = "primary",
        /// The node where its first statement may run. From the first statement that does not certainly read,
        /// the primary.
        First = "first",
    }
}

choice! {
    /// The PgBouncer release whose version, columns, statistics line and tracked parameters tools and clients find.
    CompatibleWith {
        /// PgBouncer 1.25, the default.
        V1_25 = "1.25",
        /// PgBouncer 1.26: counts logins of clients in SHOW STATS and in the statistics line, and tracks
        /// every parameter that clients can change and PostgreSQL reports.
        V1_26 = "1.26",
    }
}

impl CompatibleWith {
    /// Returns the latest release of this version.
    #[must_use]
    pub fn release(self) -> &'static str {
        match self {
            CompatibleWith::V1_25 => "1.25.2",
            CompatibleWith::V1_26 => "1.26.1",
        }
    }

    /// Returns whether the statistics of this version count logins of clients.
    #[must_use]
    pub fn counts_logins(self) -> bool {
        self == CompatibleWith::V1_26
    }
}

choice! {
    /// The program whose name SHOW VERSION and `--version` begin with.
    VersionText {
        /// PgBouncer's version and nothing else, as tools parse it.
        Pgbouncer = "pgbouncer",
        /// pgweir's version, then the version of PgBouncer that it is compatible with.
        Pgweir = "pgweir",
    }
}

choice! {
    /// The event after which a server connection goes back to its pool.
    PoolMode {
        /// The end of the client's connection.
        Session = "session",
        /// The end of the transaction.
        Transaction = "transaction",
        /// The end of each statement. Transactions of several statements are refused.
        Statement = "statement",
    }
}

choice! {
    /// The way in which clients prove who they are.
    AuthType {
        /// No proof: pgweir asks for no password and ignores the user name; the database's forced user is
        /// used.
        Any = "any",
        /// No proof: pgweir asks for no password, but the user has to be known.
        Trust = "trust",
        /// The password in clear text.
        Plain = "plain",
        /// PostgreSQL's md5 exchange; SCRAM for users whose stored secret is a SCRAM secret.
        Md5 = "md5",
        /// The name in the client's TLS certificate.
        Cert = "cert",
        /// The method that the first matching line of `auth_hba_file` names.
        Hba = "hba",
        /// A directory server checks the password.
        Ldap = "ldap",
        /// PAM checks the password.
        Pam = "pam",
        /// SCRAM-SHA-256 (RFC 7677).
        ScramSha256 = "scram-sha-256",
    }
}

choice! {
    /// The degree to which TLS is wanted and the peer's certificate is checked; the words are libpq's
    /// `sslmode`.
    SslMode {
        /// No TLS.
        Disable = "disable",
        /// TLS if the peer wants it; towards servers the same as `prefer`.
        Allow = "allow",
        /// TLS if the peer can.
        Prefer = "prefer",
        /// TLS only, without a check of the certificate.
        Require = "require",
        /// TLS only, and the certificate has to come from the configured authority.
        VerifyCa = "verify-ca",
        /// TLS only, checked like `verify-ca`, and the host name has to match.
        VerifyFull = "verify-full",
    }
}

choice! {
    /// The handling of a client's session if its server can change with every transaction.
    SessionState {
        /// The client keeps its session, as on a direct connection: pgweir replays the state that can move to
        /// another server, and other state keeps the server.
        Preserve = "preserve",
        /// The same as `preserve`, but a client that would keep its server is disconnected with an error.
        Error = "error",
        /// The same as PgBouncer: the parameters that servers report are kept, and other state is ignored.
        Pgbouncer = "pgbouncer",
    }
}

choice! {
    /// The handling of `currval` and `lastval` if the server can change with every transaction.
    SequenceAffinity {
        /// A server waits a moment for the client that drew a value on it.
        Wait = "wait",
        /// A client that drew a value keeps its server.
        Pin = "pin",
        /// Nothing is done for them, as in PgBouncer.
        Off = "off",
    }
}

choice! {
    /// The time at which a BEGIN is sent to a server in transaction pooling.
    DeferBegin {
        /// BEGIN is sent when it comes.
        Off = "off",
        /// BEGIN takes a server and is answered at once. It is sent in the packet of the transaction's first
        /// statement.
        Packet = "packet",
        /// BEGIN is answered at once. A server is taken only for the transaction's first statement.
        Server = "server",
    }
}

choice! {
    /// The way in which several poolers share the limits on server connections.
    SharedLimits {
        /// Each pooler has the limits for itself.
        Off = "off",
        /// The limits hold for all poolers together, which share them through etcd.
        Etcd = "etcd",
    }
}

choice! {
    /// The scheduling of workers by the operating system.
    WorkerScheduling {
        /// Workers with many clients let other threads run first.
        Auto = "auto",
        /// Workers are scheduled like every thread.
        Prompt = "prompt",
    }
}

choice! {
    /// The format of the log's lines.
    LogFormat {
        /// PgBouncer's format: time, process, level, message.
        Text = "text",
        /// A JSON object in each line.
        Json = "json",
    }
}

choice! {
    /// The order in which the hosts of a database's host list are used.
    LoadBalanceHosts {
        /// Each new server connection goes to the next host.
        RoundRobin = "round-robin",
        /// New server connections go to one host until a connect fails.
        Disable = "disable",
    }
}

choice! {
    /// The information that readers of the HTTP server get without having signed in.
    Anonymous {
        /// Only whether the process is well.
        Nothing = "none",
        /// Numbers by database; no names of users and applications, no addresses, no SQL.
        Numbers = "numbers",
        /// The information that a user of `stats_users` gets.
        All = "all",
    }
}

choice! {
    /// The highest version of PostgreSQL's protocol that pgweir asks servers for.
    ServerProtocol {
        /// Version 3.0, which all servers speak.
        V3_0 = "3.0",
        /// Version 3.2, new with PostgreSQL 18 (longer cancel keys); older servers negotiate down.
        V3_2 = "3.2",
    }
}

choice! {
    /// The time for which a client's reads stay at one standby.
    Balance {
        /// A client stays at the standby that served it last, unless another one is much less loaded.
        Session = "session",
        /// Each read goes to the standby that is best for it.
        Statement = "statement",
    }
}

choice! {
    /// The way in which pgweir learns of a cluster's nodes.
    Discovery {
        /// The list is in `nodes`, and pgweir asks the nodes for their role.
        Sql = "sql",
        /// A host name has the address of each node, and pgweir asks the nodes for their role.
        Dns = "dns",
        /// Patroni's REST API has the list, and tells which node is the primary.
        Patroni = "patroni",
        /// Patroni's keys in etcd have the list, and tell which node is the primary.
        Etcd = "etcd",
    }
}

choice! {
    /// The answer to a client whose primary is lost after its COMMIT.
    CommitOutcome {
        /// An error that says that the outcome is not known.
        Off = "off",
        /// The outcome: pgweir asks the next primary.
        On = "on",
        /// The same as `on`; and COMMIT is sent only when its transaction's number is known.
        Exact = "exact",
    }
}

choice! {
    /// The rule for the primary while the source of a cluster does not answer.
    SourceLost {
        /// A node is the primary by its own word, if no other node claims to be the primary.
        Trust = "trust",
        /// No node is the primary: clients wait.
        Hold = "hold",
    }
}
