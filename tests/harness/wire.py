"""A small client of PostgreSQL's protocol 3 that sends exactly the bytes it is told to, right or wrong.

Drivers hide the message order; the tests of a pooler are about the message order. Builders return bytes, `Raw` sends and
reads them. See PostgreSQL's documentation, chapter "Frontend/Backend Protocol".
"""

import base64
import hashlib
import hmac
import os
import socket
import ssl as ssl_module
import struct
from dataclasses import dataclass, field

PROTOCOL_3_0 = 0x0003_0000
PROTOCOL_3_2 = 0x0003_0002
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
GSSENC_REQUEST = struct.pack("!ii", 8, 80877104)
CANCEL_CODE = 80877102


def message(tag, body=b""):
    """One tagged message."""
    return tag.encode() + struct.pack("!i", len(body) + 4) + body


def cstr(text):
    """A string as the protocol writes it."""
    return (text.encode() if isinstance(text, str) else text) + b"\0"


def startup(params, version=PROTOCOL_3_0):
    """A StartupMessage with these parameters, in this order."""
    body = struct.pack("!i", version) + b"".join(cstr(k) + cstr(v) for k, v in params.items()) + b"\0"
    return struct.pack("!i", len(body) + 4) + body


def cancel_request(pid, key):
    """A CancelRequest; `key` is 4 bytes in protocol 3.0, up to 256 in 3.2."""
    return struct.pack("!iii", 12 + len(key), CANCEL_CODE, pid) + key


def query(sql):
    """Query: one string in the simple protocol."""
    return message("Q", cstr(sql))


def parse(name, sql, types=()):
    """Parse."""
    return message("P", cstr(name) + cstr(sql) + struct.pack(f"!h{len(types)}i", len(types), *types))


def bind(portal, name, values=(), result_formats=(), value_formats=()):
    """Bind, with text parameters (None is NULL), or bytes in other formats."""
    body = cstr(portal) + cstr(name) + struct.pack(f"!h{len(value_formats)}h", len(value_formats), *value_formats) + struct.pack("!h", len(values))
    for value in values:
        if value is None:
            body += struct.pack("!i", -1)
        else:
            value = value if isinstance(value, bytes) else str(value).encode()
            body += struct.pack("!i", len(value)) + value
    return message("B", body + struct.pack(f"!h{len(result_formats)}h", len(result_formats), *result_formats))


def describe(kind, name):
    """Describe a statement ('S') or a portal ('P')."""
    return message("D", kind.encode() + cstr(name))


def execute(portal="", max_rows=0):
    """Execute."""
    return message("E", cstr(portal) + struct.pack("!i", max_rows))


def close(kind, name):
    """Close a statement ('S') or a portal ('P')."""
    return message("C", kind.encode() + cstr(name))


SYNC = message("S")
FLUSH = message("H")
TERMINATE = message("X")
COPY_DONE = message("c")


def copy_data(data):
    """CopyData."""
    return message("d", data)


def copy_fail(why):
    """CopyFail."""
    return message("f", cstr(why))


def function_call(oid, arguments, formats=(1,), result_format=1):
    """FunctionCall with raw arguments."""
    body = struct.pack(f"!ih{len(formats)}hh", oid, len(formats), *formats, len(arguments))
    for argument in arguments:
        body += struct.pack("!i", -1) if argument is None else struct.pack("!i", len(argument)) + argument
    return message("F", body + struct.pack("!h", result_format))


def group(name, sql, values=(), types=()):
    """The usual message group of a driver: Parse, Bind, Describe, Execute, Sync."""
    return parse(name, sql, types) + bind("", name, values) + describe("P", "") + execute() + SYNC


@dataclass
class Message:
    """One message from the server's side."""

    tag: str
    body: bytes

    def fields(self):
        """An error's or notice's fields by their letter."""
        return {part[:1].decode(): part[1:].decode(errors="replace") for part in self.body.split(b"\0") if part}

    def row(self):
        """A DataRow's values as text, None for NULL."""
        values, at = [], 2
        for _ in range(struct.unpack_from("!h", self.body)[0]):
            (length,) = struct.unpack_from("!i", self.body, at)
            at += 4
            values.append(None if length < 0 else self.body[at : at + length].decode(errors="replace"))
            at += max(length, 0)
        return values

    def columns(self):
        """A RowDescription's (name, type oid) pairs."""
        columns, at = [], 2
        for _ in range(struct.unpack_from("!h", self.body)[0]):
            end = self.body.index(b"\0", at)
            (oid,) = struct.unpack_from("!i", self.body, end + 7)
            columns.append((self.body[at:end].decode(), oid))
            at = end + 19
        return columns

    def text(self):
        """The body of a message that is one string."""
        return self.body.rstrip(b"\0").decode(errors="replace")

    def __repr__(self):
        shown = self.fields() if self.tag in "EN" else self.body if len(self.body) < 80 else f"{len(self.body)} bytes"
        return f"<{self.tag} {shown}>"


@dataclass
class Answer:
    """Everything up to one ReadyForQuery."""

    messages: list = field(default_factory=list)

    def of(self, tag):
        """The messages with this tag."""
        return [m for m in self.messages if m.tag == tag]

    @property
    def tags(self):
        """The tags in order, as one string, without asynchronous messages and with runs of rows as one D."""
        kept = ""
        for m in self.messages:
            if m.tag not in "NSA" and not (m.tag in "Dd" and kept.endswith(m.tag)):
                kept += m.tag
        return kept

    @property
    def rows(self):
        """All rows as lists of text."""
        return [m.row() for m in self.of("D")]

    @property
    def columns(self):
        """Column names of the first row description."""
        return [name for name, _ in self.of("T")[0].columns()]

    @property
    def commands(self):
        """All command tags."""
        return [m.text() for m in self.of("C")]

    @property
    def errors(self):
        """All errors, as dictionaries."""
        return [m.fields() for m in self.of("E")]

    @property
    def notices(self):
        """The texts of all notices."""
        return [m.fields()["M"] for m in self.of("N")]

    @property
    def error(self):
        """The one error; a test that asks for it when there is none, or two, fails."""
        assert len(self.errors) == 1, f"expected exactly one error in {self.messages}"
        return self.errors[0]

    @property
    def status(self):
        """The transaction status of the closing ReadyForQuery."""
        return self.messages[-1].body.decode()


class Closed(Exception):
    """The other side ended the connection; `seen` holds what it still said."""

    def __init__(self, seen):
        super().__init__(f"connection closed by the other side after {seen}")
        self.seen = seen

    @property
    def error(self):
        """The last error it sent before it hung up."""
        errors = [m.fields() for m in self.seen if m.tag == "E"]
        assert errors, f"closed without an error message; seen: {self.seen}"
        return errors[-1]


class Raw:
    """A connection. Nothing is sent unasked; every wait ends with socket.timeout after `timeout_s`."""

    def __init__(self, address, timeout_s=120):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = socket.socket(socket.AF_INET)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(timeout_s)
        self.socket.connect(address)
        self.address = address
        self.buffer = bytearray()
        self._taken = 0
        self.parameters = {}
        self.pid, self.key = 0, b""
        self.unread = []
        self.negotiated = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def hang_up(self):
        """Closes the socket without Terminate."""
        self.socket.close()

    def reset(self):
        """Closes the socket with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def terminate(self):
        """Says goodbye and closes."""
        self.send(TERMINATE)
        self.socket.close()

    def send(self, *parts):
        """Sends bytes as they are."""
        self.socket.sendall(b"".join(parts))

    def send_slowly(self, data, pause_s=0.0, step=1):
        """Sends bytes one by one."""
        import time

        for at in range(0, len(data), step):
            self.socket.sendall(data[at : at + step])
            time.sleep(pause_s)

    def _exactly(self, count):
        while len(self.buffer) - self._taken < count:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            del self.buffer[: self._taken]
            self._taken = 0
            self.buffer += data
        self._taken += count
        return bytes(self.buffer[self._taken - count : self._taken])

    def byte(self):
        """One untagged byte: the answer to SSLRequest. Empty when the connection was closed."""
        try:
            return self._exactly(1)
        except EOFError:
            return b""

    def receive(self):
        """The next message; ParameterStatus is also noted in `parameters`."""
        seen = self.unread
        try:
            header = self._exactly(5)
            (length,) = struct.unpack("!i", header[1:])
            got = Message(header[:1].decode("latin-1"), self._exactly(length - 4))
        except EOFError:
            self.unread = []
            raise Closed(seen) from None
        if got.tag == "S":
            name, value = got.body.split(b"\0")[:2]
            self.parameters[name.decode()] = value.decode()
        return got

    def until(self, tags="Z"):
        """Reads up to and including the first message with one of these tags."""
        self.unread = []
        while True:
            got = self.receive()
            self.unread.append(got)
            if got.tag in tags:
                seen, self.unread = self.unread, []
                return Answer(seen)

    def until_closed(self):
        """Reads everything until the other side hangs up."""
        self.unread = []
        try:
            while True:
                self.unread.append(self.receive())
        except Closed as end:
            return Answer(end.seen)

    def quiet(self, for_s=0.3):
        """Whether nothing arrives for this long."""
        if len(self.buffer) > self._taken:
            return False
        before = self.socket.gettimeout()
        self.socket.settimeout(for_s)
        try:
            self.buffer += self.socket.recv(1 << 16)
            return False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(before)

    def start_tls(self, context, hostname="localhost"):
        """SSLRequest, then TLS. Raises when the server says no."""
        self.send(SSL_REQUEST)
        answer = self.byte()
        if answer != b"S":
            raise ConnectionError(f"answer to SSLRequest: {answer!r}")
        self.wrap(context, hostname)

    def wrap(self, context, hostname="localhost"):
        """TLS from here on."""
        self.socket = context.wrap_socket(self.socket, server_hostname=hostname)

    def login(self, user, database, password=None, version=PROTOCOL_3_0, **more):
        """Startup and authentication up to ReadyForQuery. Fails with `Closed` when refused."""
        params = {"user": user, "database": database, **more}
        self.send(startup(params, version))
        return self.authenticate(user, password)

    def authenticate(self, user, password=None):
        """The authentication exchange, whatever the server asks for."""
        seen = []
        while True:
            self.unread = seen
            got = self.receive()
            seen.append(got)
            if got.tag == "R":
                (kind,) = struct.unpack_from("!i", got.body)
                if kind == 3:
                    self.send(message("p", cstr(password)))
                elif kind == 5:
                    self.send(message("p", cstr(md5_answer(user, password, got.body[4:8]))))
                elif kind == 10:
                    self._scram(password)
                elif kind != 0:
                    raise AssertionError(f"unexpected authentication request {kind}")
            elif got.tag == "K":
                (self.pid,) = struct.unpack_from("!i", got.body)
                self.key = got.body[4:]
            elif got.tag == "v":
                self.negotiated = struct.unpack_from("!i", got.body)[0]
            elif got.tag == "Z":
                self.unread = []
                return Answer(seen)

    def _scram(self, password):
        nonce = base64.b64encode(os.urandom(18)).decode()
        first = f"n=,r={nonce}"
        initial = f"n,,{first}".encode()
        self.send(message("p", cstr("SCRAM-SHA-256") + struct.pack("!i", len(initial)) + initial))
        got = self.receive()
        if got.tag != "R":
            raise Closed([got])
        challenge = got.body[4:].decode()
        parts = dict(part.split("=", 1) for part in challenge.split(","))
        assert parts["r"].startswith(nonce)
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
        final = f"c=biws,r={parts['r']}"
        signed = f"{first},{challenge},{final}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature))).decode()
        self.send(message("p", f"{final},p={proof}".encode()))
        got = self.receive()
        if got.tag != "R":
            raise Closed([got])
        expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        assert got.body[4:] == b"v=" + base64.b64encode(expected), "the server's signature is wrong"

    def query(self, sql):
        """One simple query and its whole answer."""
        self.send(query(sql))
        return self.until("Z")

    def value(self, sql):
        """The first column of the first row."""
        answer = self.query(sql)
        assert not answer.errors, answer.errors
        return answer.rows[0][0]

    def cancel(self):
        """Sends a CancelRequest for this session over a new connection and waits until that is closed."""
        with Raw(self.address) as other:
            other.send(cancel_request(self.pid, self.key))
            assert other.until_closed().messages == []


def md5_answer(user, password, salt):
    """The answer to an md5 challenge."""
    inner = hashlib.md5((password + user).encode()).hexdigest()
    return "md5" + hashlib.md5(inner.encode() + salt).hexdigest()


def md5_secret(user, password):
    """The stored form of an md5 password."""
    return "md5" + hashlib.md5((password + user).encode()).hexdigest()


def scram_secret(password, iterations=4096, salt=None):
    """The stored form of a SCRAM password, as PostgreSQL keeps it."""
    salt = salt or os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    b64 = lambda raw: base64.b64encode(raw).decode()  # noqa: E731
    return f"SCRAM-SHA-256${iterations}:{b64(salt)}${b64(stored)}:{b64(server)}"


def tls_context(ca=None, cert=None, key=None, alpn=None):
    """A client's TLS settings; without `ca` the server is not verified."""
    context = ssl_module.SSLContext(ssl_module.PROTOCOL_TLS_CLIENT)
    if ca:
        context.load_verify_locations(ca)
    else:
        context.check_hostname = False
        context.verify_mode = ssl_module.CERT_NONE
    if cert:
        context.load_cert_chain(cert, key)
    if alpn:
        context.set_alpn_protocols([alpn])
    return context
