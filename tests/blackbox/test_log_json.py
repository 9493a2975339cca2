"""log_format = json: the same lines, one object each."""

import datetime
import json

from harness.machine import eventually


def objects(text):
    """The lines that are objects; every line has to be one."""
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_is_an_object(pooled):
    """From the first to the last line of the file, with the fields that the reference names."""
    pooler = pooled(log_format="json", verbose=1)
    path = pooler.folder / "objects"
    pooler.write_ini(log_format="json", verbose=1, logfile=path)
    pooler.reload()
    with pooler.raw() as session:
        session.query("select 1")
        session.terminate()
    eventually(lambda: path.exists() and "closing because: client close request" in path.read_text(), "the client's end")
    lines = objects(path.read_text())
    login = next(line for line in lines if "login attempt: db=app user=alice" in line["message"])
    assert list(login) == ["level", "message", "pid", "time"]
    assert (login["level"], login["pid"]) == ("LOG", pooler.pid)
    age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(login["time"])
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=10)
    assert {line["level"] for line in lines} <= {"LOG", "DEBUG", "WARNING"}


def test_it_follows_a_reload(pooled):
    """SET log_format goes over from the next line on, both ways."""
    pooler = pooled()
    path = pooler.folder / "log.new"
    pooler.admin("SET log_format = 'json'")
    pooler.admin(f"SET logfile = '{path}'")
    pooler.admin("RECONNECT")
    eventually(lambda: path.exists() and "RECONNECT command issued" in path.read_text(), "lines")
    assert objects(path.read_text())
    pooler.admin("SET log_format = 'text'")
    pooler.admin("RECONNECT")
    eventually(lambda: " LOG RECONNECT command issued\n" in path.read_text(), "a line of text")
