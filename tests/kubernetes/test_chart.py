"""The Helm chart and the manifests: rendered by Helm, valid for Kubernetes by kubeconform, and what matters in them."""

import json
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml
from harness.machine import CACHE, REPOSITORY, give, scratch_folder
from harness.pages import blocks
from harness.pooler import binary, kind

TOOLS = CACHE / "kubernetes"
CHART = REPOSITORY / "deploy" / "helm" / "pgweir"
SCHEMAS = TOOLS / "python" / "kubernetes_validate" / "kubernetes-json-schema"
VERSIONS = ["1.25.0", "1.31.0", "1.37.0"]
"""The lowest version of Chart.yaml, one between, and the last that there are schemas for."""

pytestmark = [
    pytest.mark.skipif(kind() == "pgbouncer", reason="the chart is pgweir's"),
    pytest.mark.skipif(not (TOOLS / "ready").exists(), reason="needs Helm and kubeconform (tests/kubernetes/install.sh)"),
]


def helm(*values, version="1.31.0", fails=False, file=None):
    """The manifests that Helm makes with these values, and those of a file; its error if it is to fail."""
    command = [TOOLS / "bin" / "helm", "template", "r", CHART, "--kube-version", version, *(["--values", file] if file else [])]
    for value in values:
        command += ["--set", value]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def conform(tmp_path_factory):
    """Checks manifests against the schemas of a version; unknown fields and kinds without a schema are faults."""

    def bundled(version):
        """kubeconform wants whole files: the definitions that the schemas refer to go into each."""
        folder = tmp_path_factory.mktemp(f"v{version}")
        source = SCHEMAS / f"v{version}-local-strict"
        local = (source / "_definitions.json").read_text().replace("/api/_definitions.json#", "#").replace('"_definitions.json#', '"#')
        definitions = json.loads(local)["$defs"]
        names = ["deployment-apps-v1", "service-v1", "serviceaccount-v1", "poddisruptionbudget-policy-v1", "horizontalpodautoscaler-autoscaling-v2"]
        names += ["configmap-v1", "networkpolicy-networking-v1"]
        for name in names:
            text = (source / f"{name}.json").read_text().replace("/api/_definitions.json#", "#").replace('"_definitions.json#', '"#')
            (folder / f"{name}.json").write_text(json.dumps({**json.loads(text), "$defs": definitions}))
        return folder

    folders = {version: bundled(version) for version in VERSIONS}

    def check(text, version="1.31.0", skip=""):
        where = f"{folders[version]}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        command = [TOOLS / "bin" / "kubeconform", "-strict", "-summary", "-skip", skip, "-schema-location", where]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return check


EVERYTHING = [
    "database.urlSecret.name=db", "autoscaling.enabled=true", "serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus",
    "settings.pool_mode=transaction", "settings.default_pool_size=20", "settings.log_connections=false", "podLabels.team=shop",
    "podAnnotations.a=b", "service.annotations.a=b", "imagePullSecrets[0].name=registry", "nodeSelector.disk=ssd",
]  # fmt: skip


ENTRIES = """
entries:
  databases: {"*": {cluster: main}, app: {cluster: main, connect_query: "select 'x'", pool_size: 5}}
  users: {report: {pool_mode: session}}
  clusters: {main: {nodes: "m1,m2", check_user: pgweir_check, route: auto, check_interval_ms: 500}}
  nodes: {m1: {host: 10.0.0.1}, m2: {host: 10.0.0.2, port: 5433}}
  routes: {nightly: {user: "report_*", node: m2}}
usersSecret: {name: people}
overlaySecret: secrets
console: {admins: {users: [ops]}, readers: {users: [watch, look]}}
settings: {pool_mode: transaction}
tls: {clients: {secret: own}, servers: {secret: authority}}
extraEnv: [{name: PGWEIR_MAX_CLIENT_CONN, value: "2000"}]
extraVolumes: [{name: more, emptyDir: {}}]
extraVolumeMounts: [{name: more, mountPath: /more}]
networkPolicy: {enabled: true, clients: [{podSelector: {matchLabels: {team: shop}}}], metrics: [{namespaceSelector: {}}]}
prometheusRule: {enabled: true, labels: {release: prometheus}}
serviceMonitor: {enabled: true}
dashboards: {enabled: true}
service: {type: LoadBalancer, loadBalancerClass: cloud.example/lb, loadBalancerSourceRanges: [10.0.0.0/8], externalTrafficPolicy: Local, nodePort: 30432}
"""


@pytest.fixture
def entries(tmp_path):
    """A file of values that has everything that is not in EVERYTHING."""
    path = tmp_path / "values.yaml"
    path.write_text(ENTRIES)
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_entries_tls_alerts_and_policies_are_valid(conform, entries, version):
    """The manifests of a release with a cluster, TLS, a NetworkPolicy, dashboards, further volumes and a load balancer."""
    code, said = conform(helm(file=entries, version=version), version, skip="ServiceMonitor,PrometheusRule")
    assert code == 0 and "Invalid: 0, Errors: 0" in said and "Skipped: 2" in said, said


def test_pgweir_takes_the_entries(entries, certificates):
    """The files and variables of the container: `pgweir check` accepts them, and each of them has an effect."""
    manifests = [part for part in yaml.safe_load_all(helm(file=entries)) if part]
    [container] = next(part for part in manifests if part["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"]
    data = next(part for part in manifests if part["kind"] == "ConfigMap" and part["metadata"]["name"] == "r-pgweir")["data"]
    folder = scratch_folder("chart")
    try:
        files = {
            "config/entries/entries.ini": data["entries.ini"],
            "config/entries/base/pgweir.ini": data["pgweir.ini"].replace("/run/pgweir", str(folder)),
            "secrets/overlay/check.ini": "[clusters]\nmain += check_password=secret\n",
            "secrets/users/userlist.txt": "".join(f'"{name}" "secret"\n' for name in ("ops", "watch", "look", "shop")),
            "secrets/tls-clients/tls.crt": Path(certificates.crt("server")).read_text(),
            "secrets/tls-clients/tls.key": Path(certificates.key("server")).read_text(),
            "secrets/tls-servers/ca.crt": Path(certificates.crt("ca")).read_text(),
        }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o640)
        give(folder)
        for path in [folder / "config/entries", folder / "secrets/overlay", *folder.glob("config/entries/*.ini"), *folder.glob("secrets/overlay/*")]:
            shutil.chown(path, "root")
        variables = {each["name"]: re.sub("^/secrets", f"{folder}/secrets", each["value"]) for each in container["env"]}
        words = [re.sub("/(config|secrets)/", rf"{folder}/\1/", word) for word in container["args"]]
        assert words[0] == "entrypoint"
        done = subprocess.run([binary(), "check", *words[1:]], capture_output=True, text=True, env=variables)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        for name in ("main", "m2", "nightly", "report", "PGWEIR_ADMIN_USERS", "PGWEIR_STATS_USERS", "PGWEIR_MAX_CLIENT_CONN", "check.ini"):
            assert name in said, f"{name}\n{said}"
    finally:
        shutil.rmtree(folder)


def test_alerts_and_dashboards_are_those_of_deploy(entries):
    """The rules and dashboards are the tested files, and the job is the one that they ask for."""
    manifests = {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(helm(file=entries)) if part}
    rules = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "pgweir.rules.yml").read_text())
    assert manifests["PrometheusRule", "r-pgweir"]["spec"] == rules
    dashboards = manifests["ConfigMap", "r-pgweir-dashboards"]
    for name in ("pgweir.json", "clusters.json", "cache.json"):
        assert json.loads(dashboards["data"][name]) == json.loads((REPOSITORY / "deploy" / "grafana" / "dashboards" / name).read_text())
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    [endpoint] = manifests["ServiceMonitor", "r-pgweir"]["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "pgweir"}]
    service = manifests["Service", "r-pgweir"]["spec"]
    assert service["loadBalancerSourceRanges"] == ["10.0.0.0/8"] and service["ports"][0]["nodePort"] == 30432
    ingress = manifests["NetworkPolicy", "r-pgweir"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in ingress] == ["postgres", "http"]


def test_the_notes_of_a_release(entries, tmp_path):
    """The notes name the Service, and say what is missing. `helm template` leaves notes out, so a copy of the chart has them as a manifest."""
    copy = tmp_path / "chart"
    shutil.copytree(CHART, copy)
    notes = (copy / "templates" / "NOTES.txt").read_text()
    (copy / "templates" / "notes.yaml").write_text("notes: |\n" + textwrap.indent(notes, "  "))
    command = [TOOLS / "bin" / "helm", "template", "r", copy, "--kube-version", "1.31.0", "--show-only", "templates/notes.yaml"]
    shown = [subprocess.run([*command, *more], capture_output=True, text=True) for more in (["--set", "database.host=db"], ["--values", entries])]
    assert all(done.returncode == 0 for done in shown), [done.stderr for done in shown]
    assert all("port-forward service/r-pgweir-http" in done.stdout for done in shown)
    assert ["set console.admins" in done.stdout for done in shown] == [True, False]


def test_the_readmes_example(conform, tmp_path):
    """The values that the chart's README shows make valid manifests with its two Secrets, and its install command sets known values."""
    [values] = blocks(CHART / "README.md", "yaml")
    path = tmp_path / "values.yaml"
    path.write_text(values)
    text = helm(file=path)
    assert conform(text)[0] == 0
    assert 'secretName: "pgweir-users"' in text and 'secretName: "pgweir-secrets"' in text and '{name: PGWEIR_ADMIN_USERS, value: "ops"}' in text
    [install] = blocks(CHART / "README.md")
    settings = re.findall(r"--set (\S+)", install)
    assert len(settings) == 3 and "pool_mode" not in helm(*settings[:2]) and "PGWEIR_POOL_MODE" in helm(*settings)


def test_the_commands_of_the_page(conform):
    """docs/start/kubernetes.md: the install command makes valid manifests, which use the Secret of the command before it."""
    first, *others = blocks(REPOSITORY / "docs" / "start" / "kubernetes.md")
    [secret, key] = re.findall(r"create secret generic (\S+) --from-literal=(\S+)=postgres", first)[0]
    install = first.replace("\\\n", " ")
    [(release, chart)] = re.findall(r"helm install (\S+) (\S+)", install)
    settings = re.findall(r"--set (\S+)", install)
    assert (REPOSITORY / chart).resolve() == CHART and len(settings) == 3
    text = helm(*settings)
    assert conform(text)[0] == 0 and f'secretKeyRef: {{name: "{secret}", key: "{key}"}}' in text
    # psql's host is the Service of this release.
    assert f"@{release}-pgweir:6432/" in first and "name: r-pgweir\n" in text
    [manifest] = re.findall(r"kubectl apply -f (\S+)", others[0])
    assert (REPOSITORY / manifest).exists()
    # The patches of the other operators name the image at the place that the page on images gives, and nothing that is no setting.
    patches = {name: yaml.safe_load((REPOSITORY / name).read_text()) for name in re.findall(r"--patch-file (\S+)", "".join(others[1:]))}
    zalando, crunchy = patches.values()
    image = crunchy["spec"]["proxy"]["pgBouncer"]["image"]
    assert zalando["configuration"]["connection_pooler"]["connection_pooler_image"] == image == "registry.example/pgweir:0.1.0"


def test_users_of_the_console():
    """With variables alone, the entry point gets the users and a reference to their passwords; beside a list of users that is an error."""
    values = ["database.host=db", "console.admins.users={ops,bob}", "console.admins.passwordsSecret.name=cons"]
    text = helm(*values)
    assert '{name: ADMIN_USERS, value: "ops,bob"}' in text and 'secretKeyRef: {name: "cons", key: "passwords"}' in text
    assert "write these users into usersSecret" in helm(*values, "usersSecret.name=people", fails=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [["database.host=db"], EVERYTHING, ["existingConfigSecret=own"]], ids=["least", "everything", "own-file"])
def test_manifests_are_valid(conform, version, values):
    """Every manifest has only fields that Kubernetes knows, with the right types."""
    code, said = conform(helm(*values, version=version), version, skip="ServiceMonitor")
    assert code == 0 and "Invalid: 0, Errors: 0" in said and not re.search(r"Valid: 0\b", said), said


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_of_operators_are_valid(conform, version):
    """Those in deploy/kubernetes; the operators' own kinds have no schema here."""
    for path in (REPOSITORY / "deploy" / "kubernetes").glob("*.yaml"):
        code, said = conform(path.read_text(), version, skip="Pooler")
        assert code == 0 and "Valid: 2, Invalid: 0, Errors: 0" in said, said


def test_a_wrong_field_is_found(conform):
    """The check itself: a misspelled field of a probe, and one in the pod's context."""
    text = helm("database.host=db")
    for right, wrong in [("failureThreshold: 30", "failureTreshold: 30"), ("runAsNonRoot: true", "runAsNonRoot: 3")]:
        assert right in text
        assert conform(text.replace(right, wrong))[0] != 0


def test_a_pod_is_locked_down_and_has_time_to_drain():
    """Not root, nothing writable but two volumes in memory, probes, and a grace period longer than the drain."""
    text = helm("database.host=db", "drainSeconds=20", "transactionSeconds=100")
    for line in [
        "runAsNonRoot: true", "runAsUser: 998", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [ALL]",
        "automountServiceAccountToken: false", "enableServiceLinks: false", "path: /readyz", "path: /healthz",
        "terminationGracePeriodSeconds: 125", '{name: PGWEIR_SHUTDOWN_DRAIN_SECONDS, value: "20"}', "topologyKey: kubernetes.io/hostname",
        "kind: PodDisruptionBudget",
    ]:  # fmt: skip
        assert line in text, line
    assert "HorizontalPodAutoscaler" not in text and "ServiceMonitor" not in text


def test_secrets_are_references():
    """The URL and the password come from Secrets of the user; settings keep their types."""
    text = helm(*EVERYTHING)
    assert 'secretKeyRef: {name: "db", key: "url"}' in text and "kind: Secret" not in text and "replicas:" not in text
    for name, value in [("DEFAULT_POOL_SIZE", "20"), ("POOL_MODE", "transaction"), ("LOG_CONNECTIONS", "0")]:
        assert f'{{name: PGWEIR_{name}, value: "{value}"}}' in text
    text = helm("database.host=db", "database.user=a", "database.passwordSecret.name=p")
    assert 'secretKeyRef: {name: "p", key: "password"}' in text and '{name: DB_USER, value: "a"}' in text
    text = helm("existingConfigSecret=own")
    assert 'secretName: "own"' in text and "mountPath: /etc/pgweir" in text and "env:" not in text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("image.tag=x", "set database.urlSecret.name, database.host or existingConfigSecret"),
        ("database.password=hunter2", "password"),
        ("drainSeconds=-1", "drainSeconds"),
        ("settings.listen_port=1", "listen_port"),
        ("service.type=Fast", "type"),
        ("entries.clusters.main.check_password=hunter2", "check_password"),
        ("tls.clients.sslmode=sometimes", "sslmode"),
    ],
)
def test_wrong_values_are_refused(value, said):
    """The schema names what is wrong, and a password in the values is not taken."""
    text = helm(value, fails=True)
    assert said in text, text
    assert "hunter2" not in text
