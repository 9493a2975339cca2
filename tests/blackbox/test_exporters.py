"""What exporters written for PgBouncer ask of the console.

Debian's prometheus-pgbouncer-exporter 1.7 is no measure: it reads a column (`total_requests`) that PgBouncer has not had since 1.8.
"""

import pytest

NUMBERS = {20, 23, 1700}
"""int8, int4 and numeric."""


@pytest.mark.needs("current console columns")
def test_what_pgbouncer_exporter_asks_for(pooled):
    """The statements of prometheus-community's pgbouncer_exporter: names and types of the columns that it reads by name."""
    pooler = pooled(ignore_startup_parameters="extra_float_digits")
    needed = {
        "VERSION": "version",
        "LISTS": "list items#",
        "CONFIG": "key value default changeable",
        "CLIENTS": "database user application_name state",
        "DATABASES": "name host port# database force_user pool_size# reserve_pool_size# pool_mode max_connections# current_connections# paused# disabled#",
        "STATS_TOTALS": "database query_count# query_time# bytes_received# bytes_sent# wait_time# xact_count# xact_time# client_parse_count# "
        "server_parse_count# bind_count# server_assignment_count#",
        "POOLS": "database user cl_active# cl_active_cancel_req# cl_waiting# cl_waiting_cancel_req# sv_active# sv_active_cancel# "
        "sv_being_canceled# sv_idle# sv_used# sv_tested# sv_login# maxwait#",
    }
    with pooler.raw() as client, pooler.raw("pgbouncer", "stats", password="pw-of-stats", extra_float_digits="2") as console:
        client.query("select 1")
        assert not console.query("SHOW STATS").errors
        for topic, columns in needed.items():
            answer = console.query(f"SHOW {topic}")
            types = dict(answer.of("T")[0].columns())
            for column in columns.split():
                name = column.rstrip("#")
                assert types[name] in (NUMBERS if column.endswith("#") else {25}), (topic, name)
            assert answer.rows
        assert len(console.query("SHOW VERSION").columns) == 1 and len(console.query("SHOW CONFIG").columns) == 4
        assert "reserve_pool" not in console.query("SHOW DATABASES").columns  # with both names the scrape has duplicates
