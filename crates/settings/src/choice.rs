//! Settings that are one word out of a few.
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
                // Every setting of this type has a default or may be absent; the first word is the most
                // careful one.
                [$(Self::$Variant),+][0]
            }
        }
    };
}

choice! {
    /// What a client that reads from a standby must see.
    CausalReads {
        /// Whatever the standby has replayed.
        Off = "off",
        /// What the client itself has committed, and nothing older than what it has seen.
        Session = "session",
        /// All that any client had committed when the statement came.
        Database = "database",
    }
}

choice! {
    /// Where a transaction begins whose BEGIN says nothing of what it may do, with `route=auto`.
    BeginUndeclared {
        /// On the primary.
        Primary = "primary",
        /// Where its first statement may run; from the first that does not certainly read, on the primary.
        First = "first",
    }
}

choice! {
    /// The PgBouncer release whose version, columns, statistics line and tracked parameters tools and clients find.
    CompatibleWith {
        /// The default.
        V1_25 = "1.25",
        /// Counts logins of clients in SHOW STATS and in the statistics line, and tracks every parameter that clients can change and
        /// PostgreSQL reports.
        V1_26 = "1.26",
    }
}

impl CompatibleWith {
    /// The latest release of this version.
    #[must_use]
    pub fn release(self) -> &'static str {
        match self {
            CompatibleWith::V1_25 => "1.25.2",
            CompatibleWith::V1_26 => "1.26.1",
        }
    }

    /// Whether the statistics of this version count logins of clients.
    #[must_use]
    pub fn counts_logins(self) -> bool {
        self == CompatibleWith::V1_26
    }
}

choice! {
    /// The program whose name SHOW VERSION and `--version` begin with.
    VersionText {
        /// PgBouncer's, and nothing else: tools parse it.
        Pgbouncer = "pgbouncer",
        /// pgweir's, then the version of PgBouncer that it is compatible with.
        Pgweir = "pgweir",
    }
}

choice! {
    /// When a server connection goes back to its pool.
    PoolMode {
        /// When the client disconnects.
        Session = "session",
        /// When the transaction ends.
        Transaction = "transaction",
        /// After each statement; transactions of several statements are refused.
        Statement = "statement",
    }
}

choice! {
    /// How clients prove who they are.
    AuthType {
        /// No client is asked for a password, and the user name is ignored: the database's forced user is used.
        Any = "any",
        /// No client is asked for a password, but the user has to be known.
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
    /// How far TLS is wanted and how much of the peer's certificate is checked; the words are libpq's
    /// `sslmode`.
    SslMode {
        /// Never TLS.
        Disable = "disable",
        /// TLS when the peer wants it; towards servers the same as `prefer`.
        Allow = "allow",
        /// TLS when the peer can.
        Prefer = "prefer",
        /// Only TLS; nothing is checked.
        Require = "require",
        /// Only TLS, and the certificate has to come from the configured authority.
        VerifyCa = "verify-ca",
        /// As `verify-ca`, and the host name has to match.
        VerifyFull = "verify-full",
    }
}

choice! {
    /// What becomes of a client's session where servers change hands with every transaction.
    SessionState {
        /// It is the client's, as on a direct connection: what can move is replayed, what cannot keeps the server.
        Preserve = "preserve",
        /// As `preserve`, but a client that would keep its server is disconnected with an error.
        Error = "error",
        /// As PgBouncer does: the parameters that servers report are kept, the rest is not looked at.
        Pgbouncer = "pgbouncer",
    }
}

choice! {
    /// What is done for `currval` and `lastval` where servers change hands with every transaction.
    SequenceAffinity {
        /// A server waits a moment for the client that drew a value on it.
        Wait = "wait",
        /// A client that drew a value keeps its server.
        Pin = "pin",
        /// Nothing.
        Off = "off",
    }
}

choice! {
    /// When a BEGIN is sent to a server in transaction pooling.
    DeferBegin {
        /// As it comes.
        Off = "off",
        /// It takes a server and is answered at once; it is sent in the packet of the transaction's first statement.
        Packet = "packet",
        /// It is answered at once, and a server is taken with the transaction's first statement only.
        Server = "server",
    }
}

choice! {
    /// How workers are scheduled.
    WorkerScheduling {
        /// Workers with many clients let other threads run first.
        Auto = "auto",
        /// As every thread.
        Prompt = "prompt",
    }
}

choice! {
    /// How lines of the log look.
    LogFormat {
        /// PgBouncer's: time, process, level, message.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

choice! {
    /// How the hosts of a database's host list take turns.
    LoadBalanceHosts {
        /// Each new server connection goes to the next host.
        RoundRobin = "round-robin",
        /// Stay with one host until a connect fails.
        Disable = "disable",
    }
}

choice! {
    /// What readers of the HTTP server see without having signed in.
    Anonymous {
        /// Nothing but whether the process is well.
        Nothing = "none",
        /// Numbers by database; no names of users and applications, no addresses, no SQL.
        Numbers = "numbers",
        /// What a user of `stats_users` sees.
        All = "all",
    }
}

choice! {
    /// The highest version of PostgreSQL's protocol that servers are asked for.
    ServerProtocol {
        /// Version 3.0, what all servers speak.
        V3_0 = "3.0",
        /// Version 3.2, new with PostgreSQL 18 (longer cancel keys); older servers negotiate down.
        V3_2 = "3.2",
    }
}

choice! {
    /// How often a client's reads change the standby.
    Balance {
        /// A client stays at the standby that served it last, unless another one is much less loaded.
        Session = "session",
        /// Each read goes to the standby that is best for it.
        Statement = "statement",
    }
}

choice! {
    /// How pgweir learns of a cluster's nodes.
    Discovery {
        /// `nodes` is the list, and the nodes are asked what they are.
        Sql = "sql",
        /// A host name has the address of each node, and the nodes are asked what they are.
        Dns = "dns",
        /// Patroni's REST API has the list, and says which node is the primary.
        Patroni = "patroni",
        /// Patroni's keys in etcd have the list, and say which node is the primary.
        Etcd = "etcd",
    }
}

choice! {
    /// What a client learns whose primary is lost behind its COMMIT.
    CommitOutcome {
        /// That it is not known.
        Off = "off",
        /// What became of it: the next primary is asked.
        On = "on",
        /// The same; and COMMIT is sent only when its transaction's number is known.
        Exact = "exact",
    }
}

choice! {
    /// What counts while the source of a cluster is silent.
    SourceLost {
        /// A node's own word, if no other node claims to be the primary.
        Trust = "trust",
        /// Nothing: clients wait.
        Hold = "hold",
    }
}
