"""Settings drawn for rounds: every 50 rounds the pooler has another random draw of all that may change how it works.

A client's answers are the same with every value in `DRAWN`; a setting that changes answers, or that is about addresses, files and logins, has
its reason in `FIXED`. Each setting that the program shows has a row in one of the two (`test_sessions.py`).
"""

import random

ROUNDS = 50
"""How many rounds have the same settings."""

SWITCH = ("0", "1")
RARE = ("0", "100")
"""A limit of time that no round reaches."""

DRAWN = {
    "autodb_idle_timeout": ("1", "3", "3600"),
    "cancel_vanished_after": ("0", "1", "10"),
    "cancel_wait_timeout": ("1", "10"),
    "client_idle_timeout": RARE,
    "client_login_timeout": ("0", "60"),
    "defer_begin": ("off", "packet", "server"),
    "idle_transaction_timeout": RARE,
    "log_connections": SWITCH,
    "log_disconnections": SWITCH,
    "log_format": ("text", "json"),
    "log_min_duration_ms": ("0", "1", "20"),
    "log_pooler_errors": SWITCH,
    "log_stats": SWITCH,
    "max_db_connections": ("0", "4", "6"),
    "max_parallel_connects": ("1", "2", "16"),
    "max_prepared_statements": ("1", "2", "4", "200"),
    "max_user_connections": ("0", "6"),
    "min_pool_size": ("0", "1", "2"),
    "multiplex_depth": ("0", "1", "2", "32", "1000"),
    "multiplex_max_ms": ("0", "1", "5", "1000"),
    "multiplex_servers": ("auto", "1", "2"),
    "pin_warn_after": ("0", "1", "300"),
    "pkt_buf": ("64", "4096", "65536"),
    "pool_idle_timeout": ("0", "1"),
    "pool_mode": ("transaction", "transaction", "transaction", "session"),
    "query_cache": ("off", "coalesce", "on", "on", "on"),
    "query_cache_bytes": ("100000", "67108864"),
    "query_cache_max_answer": ("100", "65536"),
    "query_timeout": RARE,
    "query_wait_notify": ("0", "60"),
    "reserve_pool_size": ("0", "1", "2"),
    "reserve_pool_timeout": ("0", "1", "5"),
    "sbuf_loopcnt": ("0", "1", "5"),
    "sequence_affinity": ("wait", "pin"),
    "sequence_affinity_ms": ("0", "1", "50", "500"),
    "server_check_delay": ("0", "1", "30"),
    "server_check_query": ("<empty>", "select 1", ""),
    "server_connect_timeout": ("5", "15"),
    "server_idle_timeout": ("0", "1", "600"),
    "server_lifetime": ("60", "3600"),
    "server_login_retry": ("0", "1", "15"),
    "server_protocol": ("3.0", "3.2"),
    "server_reset_query": ("DISCARD ALL", "DISCARD ALL; select 1"),
    "server_reset_query_always": SWITCH,
    "server_round_robin": SWITCH,
    "server_tls_protocols": ("secure", "tlsv1.2", "tlsv1.3"),
    "server_tls_sslmode": ("disable", "prefer", "require"),
    # 0 turns off the look for code that changes sessions.
    "session_audit_sample": ("1", "7", "5000"),
    "statement_stats_bytes": ("0", "20000", "4194304"),
    "stats_period": ("1", "60"),
    "transaction_timeout": RARE,
    "verbose": ("0", "1", "2"),
    "worker_busy_poll_us": ("0", "150", "10000"),
    "worker_io_uring": SWITCH,
    "worker_scheduling": ("auto", "prompt"),
    "workers": ("0", "1", "2", "3"),
}
"""The values of each setting that may be drawn."""

CLUSTER = {
    "begin_undeclared": ("primary", "first"),
    "causal_wait_ms": ("1", "2000"),
    "commit_outcome": ("off", "on", "exact"),
}
"""The same for the options of a cluster with standbys. `causal_reads` is fixed: a round sees what was done beside it."""

ADDRESSES = "addresses, names and sockets"
FILES = "files, and what is written to places"
LOGINS = "logins"
TCP = "TCP; the clients come through a unix socket"
DISCONNECTS = "disconnects or refuses clients"
SLOTS = "with follow=wal, it needs a slot and a publication in each database of a round; test_query_cache_wal.py has its own clients"
ANSWERS = "changes what clients are answered"
PROCESS = "the process, and its end"
POOLERS = "several poolers and an etcd"

FIXED = {
    **dict.fromkeys(("shared_limits", "shared_limits_prefix", "shared_limits_ttl"), POOLERS),
    **dict.fromkeys(("allow_discovered_hosts", "dns_max_ttl", "dns_nxdomain_ttl", "dns_zone_check_period", "etcd_endpoints", "etcd_password",
                     "etcd_user", "http_anonymous", "http_listen", "listen_addr", "listen_backlog", "listen_port", "otlp_endpoint", "peer_id",
                     "resolv_conf", "so_reuseport", "standby_listen_port", "trace_one_in", "unix_socket_dir", "unix_socket_group",
                     "unix_socket_mode", "vip", "vip_down_command", "vip_interface", "vip_ttl", "vip_up_command", "zone"), ADDRESSES),
    **dict.fromkeys(("conffile", "client_tls_ca_file", "client_tls_cert_file", "client_tls_key_file", "http_tls_cert_file", "http_tls_key_file",
                     "logfile", "pidfile", "server_tls_ca_file", "server_tls_cert_file", "server_tls_key_file", "source_tls_ca_file",
                     "source_tls_cert_file", "source_tls_key_file", "syslog", "syslog_facility", "syslog_ident"), FILES),
    **dict.fromkeys(("admin_users", "auth_dbname", "auth_file", "auth_hba_file", "auth_ident_file", "auth_ldap_options", "auth_query", "auth_type",
                     "auth_user", "scram_iterations", "stats_users"), LOGINS),
    **dict.fromkeys(("client_tls13_ciphers", "client_tls_ciphers", "client_tls_dheparams", "client_tls_ecdhcurve", "client_tls_protocols",
                     "client_tls_sslmode", "server_tls13_ciphers", "server_tls_ciphers", "tcp_defer_accept", "tcp_keepalive", "tcp_keepcnt",
                     "tcp_keepidle", "tcp_keepintvl", "tcp_socket_buffer", "tcp_user_timeout"), TCP),
    **dict.fromkeys(("disable_pqexec", "max_client_conn", "max_db_client_connections", "max_packet_size", "max_pinned",
                     "max_user_client_connections", "max_waiting_clients", "query_wait_timeout",
                     "server_fast_close"), DISCONNECTS),
    **dict.fromkeys(("application_name_add_host", "compatible_with", "ignore_startup_parameters", "login_notify_message", "session_state",
                     "query_cache_hints", "query_cache_ttl_ms", "track_extra_parameters", "version_text"), ANSWERS),
    **dict.fromkeys(("job_name", "shutdown_drain_seconds", "suspend_timeout", "user"), PROCESS),
    **dict.fromkeys(("query_cache_ddl_ms", "query_cache_follow", "query_cache_lag_bytes", "query_cache_max_age_ms", "query_cache_probe_ms",
                     "query_cache_publication", "query_cache_user", "query_cache_verify"), SLOTS),
    "default_pool_size": "each round draws it",
}  # fmt: skip
"""The settings that are not drawn, and why."""


def draw(number, clustered=False):
    """The settings of the rounds with this number; those of a cluster have `cluster.` before their names."""
    chance = random.Random(f"swarm {number}")
    share = chance.choice([0.1, 0.3, 0.6])
    options = {f"cluster.{name}": values for name, values in CLUSTER.items()} if clustered else {}
    return {name: chance.choice(values) for name, values in sorted({**DRAWN, **options}.items()) if chance.random() < share}
