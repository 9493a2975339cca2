"""A name server on loopback that says what the test wants, over UDP and TCP; and relays to give a cluster several addresses."""

import socket
import socketserver
import struct
import threading
from collections import Counter
from ipaddress import ip_address

TYPES = {1: "A", 28: "AAAA", 6: "SOA"}


def _name(labels):
    return b"".join(bytes([len(label)]) + label.encode() for label in labels.split(".") if label) + b"\0"


class NameServer:
    """Knows `hosts` (name to a list of addresses) and `zones` (name to a serial number); both may be changed at any time.

    `asked` counts the questions by kind and name. With `truncates` answers over UDP have nothing but the word that TCP has more. A
    name in `fails` is answered with SERVFAIL.
    """

    def __init__(self, hosts, zones=None, truncates=False):
        self.hosts, self.zones, self.truncates, self.fails = dict(hosts), dict(zones or {}), truncates, set()
        self.asked = Counter()
        owner = self

        class Udp(socketserver.BaseRequestHandler):
            def handle(self):
                question, sock = self.request
                sock.sendto(owner.answer(question, owner.truncates), self.client_address)

        class Tcp(socketserver.BaseRequestHandler):
            def handle(self):
                stream = self.request.makefile("rb")
                (length,) = struct.unpack("!H", stream.read(2))
                answer = owner.answer(stream.read(length), False)
                self.request.sendall(struct.pack("!H", len(answer)) + answer)

        while True:
            self._udp = socketserver.ThreadingUDPServer(("127.0.0.1", 0), Udp)
            self.port = self._udp.server_address[1]
            try:
                self._tcp = socketserver.ThreadingTCPServer(("127.0.0.1", self.port), Tcp)
                break
            except OSError:  # another program has that port for TCP
                self._udp.server_close()
        for server in (self._udp, self._tcp):
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def answer(self, question, truncated):
        """The answer to a question, both as bytes of a message."""
        number, name, place = question[:2], [], 12
        while question[place]:
            name.append(question[place + 1 : place + 1 + question[place]].decode())
            place += 1 + question[place]
        (kind,) = struct.unpack("!H", question[place + 1 : place + 3])
        kind, name = TYPES.get(kind, "?"), ".".join(name).lower()
        self.asked[kind, name] += 1
        records, code = [], 0
        if name in self.fails:
            code = 2
        elif kind == "SOA" and name in self.zones:
            records = [(6, _name("ns." + name) + _name("admin." + name) + struct.pack("!5I", self.zones[name], 60, 60, 60, 60))]
        elif name in self.hosts:
            packed = [ip_address(address) for address in self.hosts[name]]
            version, number_of_kind = (6, 28) if kind == "AAAA" else (4, 1)
            records = [(number_of_kind, address.packed) for address in packed if address.version == version and kind in ("A", "AAAA")]
        elif name not in self.zones:
            code = 3
        if truncated:
            records = []
        body = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", of, 1, 0, len(data)) + data for of, data in records)
        flags = 0x8180 | code | (0x0200 if truncated else 0)
        return number + struct.pack("!5H", flags, 1, len(records), 0, 0) + question[12 : place + 5] + body

    def resolv_conf(self, folder, more=""):
        """Writes a resolv.conf that names this server, and returns its path."""
        path = folder / "resolv.conf"
        path.write_text(f"nameserver 127.0.0.1:{self.port}\noptions timeout:2 attempts:2\n{more}")
        return str(path)

    def close(self):
        """Stops it."""
        for server in (self._udp, self._tcp):
            server.shutdown()
            server.server_close()
