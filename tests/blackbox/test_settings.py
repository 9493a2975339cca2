"""The ini file and its settings: every setting of PgBouncer loads, listening addresses, limits on packets, names of databases."""

import shutil
import socket

import pytest

from harness.machine import eventually, give
from harness.wire import Closed, Raw, query, tls_context

SETTINGS = """
    admin_users application_name_add_host auth_dbname auth_file auth_hba_file auth_ident_file auth_ldap_options auth_query auth_type
    auth_user autodb_idle_timeout cancel_wait_timeout client_idle_timeout client_login_timeout client_tls13_ciphers client_tls_ca_file
    client_tls_cert_file client_tls_ciphers client_tls_dheparams client_tls_ecdhcurve client_tls_key_file client_tls_protocols
    client_tls_sslmode conffile default_pool_size disable_pqexec dns_max_ttl dns_nxdomain_ttl dns_zone_check_period idle_transaction_timeout
    ignore_startup_parameters job_name listen_addr listen_backlog listen_port log_connections log_disconnections log_pooler_errors log_stats
    logfile max_client_conn max_db_client_connections max_db_connections max_packet_size max_prepared_statements max_user_client_connections
    max_user_connections min_pool_size peer_id pidfile pkt_buf pool_mode query_timeout query_wait_notify query_wait_timeout
    reserve_pool_size reserve_pool_timeout resolv_conf sbuf_loopcnt scram_iterations server_check_delay server_check_query
    server_connect_timeout server_fast_close server_idle_timeout server_lifetime server_login_retry server_reset_query
    server_reset_query_always server_round_robin server_tls13_ciphers server_tls_ca_file server_tls_cert_file server_tls_ciphers
    server_tls_key_file server_tls_protocols server_tls_sslmode so_reuseport stats_period stats_users suspend_timeout syslog
    syslog_facility syslog_ident tcp_defer_accept tcp_keepalive tcp_keepcnt tcp_keepidle tcp_keepintvl tcp_socket_buffer
    tcp_user_timeout track_extra_parameters transaction_timeout unix_socket_dir unix_socket_group unix_socket_mode user verbose
""".split()


@pytest.mark.needs("all settings of 1.25")
def test_every_setting_is_known(pooled):
    """SHOW CONFIG names every setting of PgBouncer 1.25."""
    shown = {row["key"] for row in pooled().show("CONFIG")}
    assert not set(SETTINGS) - shown


def test_what_is_shown_can_be_written(pooled):
    """An ini that spells out every setting with the value SHOW CONFIG shows: it loads, and shows the same."""
    pooler = pooled(arguments=["-v"])
    first = {row["key"]: row["value"] for row in pooler.show("CONFIG")}
    skip = {"conffile", "job_name", "service_name", "unix_socket_mode", "logfile", "user", "pidfile"}
    pooler.write_ini(**{key: value for key, value in first.items() if value and key not in skip})
    pooler.reload()
    again = {row["key"]: row["value"] for row in pooler.show("CONFIG")}
    assert {k: v for k, v in again.items() if k not in skip} == {k: v for k, v in first.items() if k not in skip}


def test_a_sample_of_other_peoples_inis(pooled, pg):
    """Comments, odd spacing, hex and octal numbers, fractions of seconds, mixed case in enumerations."""
    pooler = pooled(
        databases={"quoted": f"host='127.0.0.1'   port = '{pg.port}' dbname='app' application_name='it''s'"},
        unix_socket_mode="0770", default_pool_size="0x10", query_wait_timeout="12.5", pool_mode="Transaction", auth_type="TRUST",
        server_reset_query="DISCARD ALL; select 1", log_stats=0, ignore_startup_parameters="extra_float_digits , geqo",
    )  # fmt: skip
    rows = {row["key"]: row["value"] for row in pooler.show("CONFIG")}
    assert (rows["default_pool_size"], rows["query_wait_timeout"], rows["pool_mode"]) == ("16", "12.5", "transaction")
    with pooler.raw("quoted", extra_float_digits="1", geqo="off") as session:
        assert session.value("select 1") == "1"


def test_listening_on_all_addresses(pooled):
    """listen_addr = *."""
    pooler = pooled(listen_addr="*")
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
    eventually(lambda: f"0.0.0.0:{pooler.port}" in pooler.log(), "the address is logged")


def test_ipv6(pooled):
    """listen_addr with an IPv6 address beside an IPv4 one."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")
    pooler = pooled(listen_addr="127.0.0.1, ::1")
    with pooler.connect(host="::1") as client:
        assert client.execute("select 1").fetchone() == (1,)
        assert pooler.show("CLIENTS", database="app")[0]["addr"] == "::1"
    with pooler.raw() as session:
        assert session.value("select 1") == "1"


def test_one_address_of_several_fails(pooled):
    """An address of another machine is a warning as long as another one works; alone it is fatal."""
    pooler = pooled(listen_addr="192.0.2.1,127.0.0.1")
    with pooler.raw() as session:
        assert session.value("select 1") == "1"
    assert "192.0.2.1" in pooler.log()
    alone = pooled(listen_addr="192.0.2.1", unix_socket_dir="", start=False)
    alone.start(wait=False)
    assert alone.wait_exit() == 1
    assert "192.0.2.1" in alone.output()


def test_an_abstract_unix_socket(pooled):
    """unix_socket_dir = @name listens in the abstract namespace: no file."""
    pooler = pooled(unix_socket_dir="@pgweir-test")
    with Raw(f"\0pgweir-test/.s.PGSQL.{pooler.port}") as session:
        session.login("alice", "app")
        assert session.value("select 1") == "1"


def test_max_packet_size(pooled):
    """A message above max_packet_size ends its session, one below passes."""
    pooler = pooled(max_packet_size=100_000)
    with pooler.raw() as session, pooler.raw() as other:
        assert session.value(f"select length('{'x' * 90_000}')") == "90000"
        session.send(query(f"select '{'x' * 200_000}'"))
        try:
            answer = session.until_closed()
        except ConnectionResetError:
            answer = None
        assert answer is None or not answer.rows
        assert other.value("select 1") == "1"


def test_autodb_idle_timeout(pooled, pg):
    """A database made from `*` is forgotten when it was unused for autodb_idle_timeout, and made again when asked for."""
    pooler = pooled(databases={"*": f"host=127.0.0.1 port={pg.port}"}, autodb_idle_timeout=1, server_idle_timeout=1)
    for _ in range(2):
        with pooler.raw("postgres") as session:
            assert session.value("select 1") == "1"
        assert pooler.show("DATABASES", name="postgres")
        eventually(lambda: not pooler.show("DATABASES", name="postgres"), "it is forgotten", timeout_s=15)


def test_server_fast_close(pooled):
    """server_fast_close in session mode: RECONNECT takes effect at the end of the transaction, not of the session."""
    pooler = pooled(pool_mode="session", server_fast_close=1)
    with pooler.raw() as session:
        session.query("begin")
        pooler.admin("RECONNECT")
        assert session.query("select 1").status == "T"
        session.send(query("commit"))
        assert session.until_closed().of("C")[0].text() == "COMMIT"
    slow = pooled(pool_mode="session")
    with slow.raw() as session:
        session.value("select 1")
        slow.admin("RECONNECT")
        assert session.value("select 2") == "2"


def test_certificate_files_are_read_again(pooled, certificates):
    """The same file names with other contents: RELOAD and SIGHUP read them again."""
    pooler = pooled(start=False)
    files = {}
    for kind in ("key", "crt"):
        files[kind] = pooler.folder / f"tls.{kind}"
        shutil.copy(getattr(certificates, kind)("pooler"), files[kind])
        give(files[kind])
    pooler.write_ini(client_tls_sslmode="prefer", client_tls_key_file=files["key"], client_tls_cert_file=files["crt"])
    pooler.start()

    def served():
        with pooler.raw(login=False) as session:
            session.start_tls(tls_context())
            return session.socket.getpeercert(binary_form=True)

    first = served()
    for kind in ("key", "crt"):
        shutil.copy(getattr(certificates, kind)("pooler2"), files[kind])
    assert served() == first
    pooler.reload()
    assert served() != first


def test_names_with_every_character(pooled, pg):
    """Database names in quotes, with blanks and letters beyond ASCII."""
    pooler = pooled(databases={"with-dash.and.dots": pg.at("app"), "UPPER_lower": pg.at("app2")})
    for name in ("with-dash.and.dots", "UPPER_lower"):
        with pooler.raw(name) as session:
            assert session.value("select 1") == "1"
    with pytest.raises(Closed):
        pooler.raw("upper_lower")


def test_repeated_database_lines(pooled, pg):
    """The last line of a name wins."""
    pooler = pooled(start=False)
    pooler.ini.write_text(f"[databases]\napp = {pg.at('app2')}\n" + pooler.ini.read_text())
    pooler.start()
    with pooler.raw("app") as session:
        assert session.value("select current_database()") == "app"
