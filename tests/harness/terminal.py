"""A pseudo-terminal with a program in it: what its screen shows, keys, and a change of its size."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading

import pyte

from harness.machine import dies_with_us, eventually

#: The colours that pyte tells as numbers of the palette of 256.
COLOURS = {"cd0000": "red", "00cd00": "green", "cdcd00": "brown", "7f7f7f": "brightblack"}

UP, DOWN, ENTER, ESCAPE, END = "\x1b[A", "\x1b[B", "\r", "\x1b", "\x1b[F"


class Terminal:
    """A program in a terminal of this size. It is ended when the block ends."""

    def __init__(self, *command, columns=80, lines=24, env=None):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.written = b""
        self.lock = threading.Lock()
        self.master, self.slave = pty.openpty()
        self._tell_size(columns, lines)
        self.modes = self.modes_now()
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)

        def own():
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*dies_with_us("KILL"), *map(str, command)], stdin=self.slave, stdout=self.slave, stderr=self.slave, preexec_fn=own, env=environment, cwd="/"
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        os.close(self.slave)
        self.reader.join(20)
        os.close(self.master)

    def _read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            with self.lock:
                self.written += data
                self.stream.feed(data)

    def _tell_size(self, columns, lines):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def modes_now(self):
        """The modes of the terminal, without the speed and the characters."""
        return termios.tcgetattr(self.slave)[:4]

    def resize(self, columns, lines):
        """The user changes the size of the window."""
        with self.lock:
            self.screen.resize(lines, columns)
            self._tell_size(columns, lines)

    def type(self, keys):
        """The user types."""
        os.write(self.master, keys.encode())

    def lines(self):
        """The screen's lines without blanks at their ends."""
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def shows(self, *texts, timeout_s=60):
        """Waits until the screen has all of these texts at once; gives its lines."""
        seen = []

        def look():
            seen[:] = self.lines()
            page = "\n".join(seen)
            return all(text in page for text in texts)

        try:
            eventually(look, f"the screen shows {texts}", timeout_s=timeout_s)
        except Exception as error:
            raise AssertionError(f"the screen does not show {texts}:\n" + "\n".join(seen)) from error
        return list(seen)

    def hides(self, text):
        """Waits until the screen does not have this text; gives its lines."""
        eventually(lambda: text not in "\n".join(self.lines()), f"the screen hides {text}")
        return self.lines()

    def ended(self):
        """Waits for the end of the program; gives its exit code. The terminal must be as it was."""
        code = self.process.wait(30)
        eventually(lambda: self.written.rfind(b"\x1b[?1049l") > self.written.rfind(b"\x1b[?1049h"), "the other screen is left")
        assert self.modes_now() == self.modes, "the terminal has its modes back"
        assert self.written.rfind(b"\x1b[?25h") > self.written.rfind(b"\x1b[?25l"), "the cursor is visible"
        return code

    def end_by(self, number=signal.SIGTERM):
        """Sends the program a signal."""
        self.process.send_signal(number)

    def capture(self):
        """The screen as runs of cells that look the same, for each line: text, colour, bold, reverse."""
        with self.lock:
            rows = []
            for y in range(self.screen.lines):
                runs = []
                for x in range(self.screen.columns):
                    cell = self.screen.buffer[y][x]
                    look = [COLOURS.get(cell.fg, cell.fg), cell.bold, cell.reverse, cell.underscore]
                    if runs and runs[-1][1:] == look:
                        runs[-1][0] += cell.data
                    else:
                        runs.append([cell.data, *look])
                rows.append(runs)
            return {"columns": self.screen.columns, "rows": rows}
