"""The Helm chart and the manifests: rendered by Helm, valid for Kubernetes by kubeconform, and what matters in them."""

import json
import re
import subprocess

import pytest
from harness.machine import CACHE, REPOSITORY
from harness.pooler import kind

TOOLS = CACHE / "kubernetes"
CHART = REPOSITORY / "deploy" / "helm" / "pgweir"
SCHEMAS = TOOLS / "python" / "kubernetes_validate" / "kubernetes-json-schema"
VERSIONS = ["1.25.0", "1.31.0", "1.37.0"]
"""The lowest version of Chart.yaml, one between, and the last that there are schemas for."""

pytestmark = [
    pytest.mark.skipif(kind() == "pgbouncer", reason="the chart is pgweir's"),
    pytest.mark.skipif(not (TOOLS / "ready").exists(), reason="needs Helm and kubeconform (tests/kubernetes/install.sh)"),
]


def helm(*values, version="1.31.0", fails=False):
    """The manifests that Helm makes with these values; its error if it is to fail."""
    command = [TOOLS / "bin" / "helm", "template", "r", CHART, "--kube-version", version]
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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [["database.host=db"], EVERYTHING, ["existingConfigSecret=own"]], ids=["least", "everything", "own-file"])
def test_manifests_are_valid(conform, version, values):
    """Every manifest has only fields that Kubernetes knows, with the right types."""
    code, said = conform(helm(*values, version=version), version, skip="ServiceMonitor")
    assert code == 0 and "Invalid: 0, Errors: 0" in said and not re.search(r"Valid: 0\b", said), said


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
    ],
)
def test_wrong_values_are_refused(value, said):
    """The schema names what is wrong, and a password in the values is not taken."""
    text = helm(value, fails=True)
    assert said in text, text
    assert "hunter2" not in text
