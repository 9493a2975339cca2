"""What an old PgBouncer cannot do. The suite is proved against Debian's PgBouncer where that has the feature.

A test says `@pytest.mark.needs("...")`; against a PgBouncer older than the version given here it is skipped with that reason.
`None` means that no PgBouncer does it: it is ours alone.
"""

SINCE = {
    "cancel through a held server": (1, 18),
    "tracked extra parameters": (1, 20),
    "options in the startup packet": (1, 20),
    "prepared statements": (1, 21),
    "COPY sent ahead of its answer": (1, 21),
    "min_pool_size without clients": (1, 21),
    "pool size zero": (1, 21),
    "pipelines known to the pooler": (1, 21),
    "failed RELOAD reported": (1, 20),
    "deallocate all noticed": (1, 22),
    "shutdown waits for clients": (1, 23),
    "replication": (1, 23),
    "per-user pool settings": (1, 23),
    "user timeouts": (1, 23),
    "client limits per database": (1, 24),
    "client limits per user": (1, 24),
    "kill client": (1, 24),
    "direct TLS": (1, 25),
    "protocol negotiation": (1, 25),
    "transaction timeout": (1, 25),
    "query wait notice": (1, 25),
    "current console columns": (1, 25),
    "state command": (1, 19),
    "SIGQUIT": (1, 23),
    "prepared statement errors keep the session": None,
    "parallel connects": None,
    "PostgreSQL's error codes": None,
    "protocol 3.2": None,
    "message type 0 refused": None,
    "failed hidden statements close the server": None,
    "query_timeout spares idle transactions": None,
    "malformed logins answered": None,
    "empty secrets never match": None,
    "console commands in pieces": None,
    "nonsense of servers refused": None,
    "half a message holds no server": None,
    "known statements prepared without a server": None,
    "all settings of 1.25": (1, 25),
    "login notice": (1, 26),
    "pool idle timeout": (1, 26),
    "client logins in SHOW STATS": (1, 26),
    "options in the startup packet": (1, 20),
    "scram iterations": (1, 25),
    "cancel requests of senders that do not wait": None,
    "peers": (1, 19),
    "online restart over a unix socket": None,
    "a signal to stop ends SUSPEND": None,
    "workers": None,
    "worker scheduling": None,
    "any parameter value kept": None,
    "waiting clients are watched": None,
    "console named pgweir": None,
    "extended protocol on the console": None,
    "metrics over HTTP": None,
    "cancel of a queued statement": None,
    "promotions told": None,
    "a limit of the queue": None,
    "changed results noticed": None,
    "auth_dbname": (1, 19),
    "auth_query of a disabled database refused": (1, 24),
    "waiting clients told when no server is usable": (1, 22),
    "what is asked before SIGINT is answered": None,
    "a server from the login on in session pooling": None,
    "LDAP": (1, 25),
    "PAM in rules": None,
    "systemd sockets by name": None,
    "channel binding": None,
    "ident maps": (1, 20),
    "a reload is taken as a whole": None,
    "rules by SET": None,
    "passwords in clear are passed on": (1, 25),
    "nothing of a client reaches auth_query": (1, 25),
    "unknown users of auth_query are not told": None,
    "reasons of servers stay in the log": None,
    "pgweir import": None,
    "pgweir check": None,
    "pgweir doctor": None,
}


def missing(ability, kind, version):
    """Why a test that needs this ability must be skipped for this pooler, or None."""
    since = SINCE[ability]
    if kind == "pgweir":
        return None
    if since is None:
        return f"no PgBouncer has: {ability}"
    if version < since:
        return f"PgBouncer {'.'.join(map(str, version))} is older than {since[0]}.{since[1]}, which brought: {ability}"
    return None
