"""A link that can be held up and cut: a TCP proxy on loopback."""

import selectors
import socket
import threading
from contextlib import suppress


class Link:
    """Forwards connections to a port of 127.0.0.1, and counts them (`connections`). After `limit` bytes of the server, a connection is cut
    (`how="cut"`) or held up (`how="hold"`)."""

    def __init__(self, target, address="127.0.0.1", port=0):
        self.target, self.connections = target, 0
        self.limit, self.how = None, "cut"
        self.reached = threading.Event()
        self._pairs = []
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=50)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self.connections += 1
                self._pairs.append((client, server))
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client, server):
        passed = 0
        with suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    data = key.fileobj.recv(65536)
                    if not data:
                        raise OSError("it has ended")
                    passed += len(data) if key.fileobj is server else 0
                    if self.limit is not None and passed > self.limit:
                        self.reached.set()
                        if self.how == "cut":
                            raise OSError("cut")
                        ready.unregister(key.fileobj)
                        continue
                    key.data.sendall(data)
        self._end(client, server)

    @staticmethod
    def _end(*sockets):
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def mend(self):
        """Cuts what there is, and lets new connections pass."""
        self.limit = None
        for pair in self._pairs:
            self._end(*pair)

    def close(self):
        """Ends the link."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.mend()
