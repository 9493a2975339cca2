"""Prometheus as its users run it, with postgres_exporter beside it, for a few seconds."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from .machine import CACHE, TESTS, as_service, eventually, free_port, give, reachable, scratch_folder


def program(name):
    """The path of `prometheus`, `promtool` or `prometheus-postgres-exporter`; brought here when missing."""
    subprocess.run([TESTS / "monitoring" / "install.sh"], check=True)
    return CACHE / "monitoring" / "usr" / "bin" / name


def fetch(url, timeout_s=5, **headers):
    """Status and text of an HTTP GET."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as fault:
        return fault.code, fault.read().decode()


class Service:
    """A program that serves HTTP on a port of its own until it is stopped."""

    def __init__(self, name, arguments, folder, port, ready, environment=None):
        self.port = port
        self._log = open(folder / f"{name}.log", "wb")
        command = as_service(str(reachable(program(name), folder)), *arguments, signal_name="KILL")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd=folder, env=environment or {}
        )
        eventually(lambda: self._answers(ready), f"{name} answers: {(folder / f'{name}.log').read_text()[-2000:]}", timeout_s=20)

    def _answers(self, path):
        try:
            return fetch(f"http://127.0.0.1:{self.port}{path}")[0] == 200
        except OSError:
            return False

    def stop(self):
        """Ends it."""
        self._process.kill()
        self._process.wait(timeout=10)
        self._log.close()


class Prometheus:
    """Scrapes the pooler as job `pgweir` and the cluster, through postgres_exporter, as job `postgres`, once a second."""

    def __init__(self, pooler_port, cluster, *options):
        self.folder = scratch_folder("prom")
        exporter_port, port = free_port(), free_port()
        jobs = "".join(
            f"  - job_name: {job}\n    static_configs: [{{targets: ['127.0.0.1:{at}']}}]\n" for job, at in (("pgweir", pooler_port), ("postgres", exporter_port))
        )
        (self.folder / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nscrape_configs:\n{jobs}")
        (self.folder / "data").mkdir()
        give(self.folder)
        self.exporter = Service(
            "prometheus-postgres-exporter",
            [f"--web.listen-address=127.0.0.1:{exporter_port}"],
            self.folder,
            exporter_port,
            "/",
            {"DATA_SOURCE_NAME": f"host={cluster.folder} port={cluster.port} user=postgres dbname=postgres sslmode=disable"},
        )
        self.server = Service(
            "prometheus",
            ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}", *options],
            self.folder,
            port,
            "/-/ready",
        )

    def query(self, expression):
        """What the expression is now: a list of (labels, value)."""
        status, text = fetch(f"http://127.0.0.1:{self.server.port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        answer = json.loads(text)
        assert status == 200, f"{expression}: {answer.get('error')}"
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    def stop(self):
        """Ends both and removes what they kept."""
        self.server.stop()
        self.exporter.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
