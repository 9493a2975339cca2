"""The image's steps, taken from deploy/Dockerfile and run in a minimal Debian; the container's command there; and hadolint."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from harness.cluster import PASSWORDS
from harness.machine import CACHE, REPOSITORY, dies_with_us, eventually, free_port
from harness.pooler import binary, kind
from test_packages import debian, run  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(kind() == "pgbouncer", reason="the image is pgweir's")

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"


#: What the image has besides pgweir, for health checks and operators.
TOOLS = ["psql", "pg_isready", "pkill", "pgrep"]


def real(name):
    """A program of this machine; Debian's wrapper of PostgreSQL's programs is none."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found[-1] if found else shutil.which(name)


def instructions():
    """The instructions of the image: each its word and the rest, with continued lines joined. The slim image is its first stage."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    (beginning,) = re.finditer(r"^FROM \S+ AS slim$", text, re.MULTILINE)
    stage = re.sub(r"^FROM .*\n", "", text[beginning.start() :], flags=re.MULTILINE)
    return [tuple(line.split(maxsplit=1)) for line in stage.splitlines() if line]


def one(word):
    """The rest of the one instruction with this word."""
    (rest,) = (rest for first, rest in instructions() if first == word)
    return rest


def copy(machine, rest):
    """A COPY: from the stages that build, the program under test and what this machine has; else from the repository."""
    words = shlex.split(rest)
    options, (source, target) = [word for word in words if word.startswith("--")], [word for word in words if not word.startswith("--")]
    if "--from=tools" in options:
        assert target == "/"
        return run("sh", REPOSITORY / "deploy" / "docker" / "tools.sh", machine.root, *(real(name) for name in TOOLS))
    file = REPOSITORY / source
    if "--from=build" in options:
        file = {"/src/target/dist/pgweir": binary(), "/etc/ssl/certs/ca-certificates.crt": DOCKERFILE}[source]
    place = machine.path(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, place)
    mode = next((option.removeprefix("--chmod=") for option in options if option.startswith("--chmod=")), None)
    if mode:
        place.chmod(int(mode, 8))


@pytest.fixture
def image(debian):  # noqa: F811
    """A minimal Debian in which the steps of the image were taken."""
    for word, rest in instructions():
        if word == "COPY":
            copy(debian, rest)
        elif word == "RUN":
            debian.run("sh", "-euc", rest)
    return debian


def command(machine, *words, **variables):
    """The command line of a container: the image's user, environment and entry point."""
    environment = dict(pair.split("=", 1) for pair in shlex.split(one("ENV"))) | variables
    inside = machine.command("env", "-i", "PATH=/usr/bin:/bin", *(f"{key}={value}" for key, value in environment.items()), *words, user=one("USER"))
    return [*dies_with_us("KILL"), *inside]


@pytest.mark.timeout(600)
def test_the_container_serves(image, pg):
    """Its user is a number and not root, the files are there, it serves by its environment alone, and its health check tells so."""
    assert re.fullmatch(r"[1-9]\d*:\d+", one("USER"))
    assert image.run("id", "-u", "pgbouncer").strip() == one("USER").split(":")[0]
    assert image.owner("/run/pgweir") == "pgbouncer:root 770"
    assert image.run("pgbouncer", "--version") == image.run("pgweir", "--version")
    port, web = str(free_port()), free_port()
    variables = {
        "DATABASE_URL": f"postgres://alice:{PASSWORDS['alice']}@127.0.0.1:{pg.port}/app",
        "PGWEIR_LISTEN_PORT": port,
        "PGWEIR_LISTEN_ADDR": "127.0.0.1",
        "PGWEIR_HTTP_LISTEN": f"127.0.0.1:{web}",
    }
    health = command(image, *json.loads(re.search(r"CMD (\[.*\])", one("HEALTHCHECK"))[1]), **variables)
    assert subprocess.run(health, capture_output=True).returncode != 0, "nothing answers yet"
    words = [*json.loads(one("ENTRYPOINT")), *json.loads(one("CMD"))]
    process = subprocess.Popen(command(image, *words, **variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: process.poll() is not None or subprocess.run(health, capture_output=True).returncode == 0, "it is healthy")
        assert process.poll() is None, process.stdout.read()
        asked = ["psql", "-X", "-At", "-h", "127.0.0.1", "-p", port, "-U", "alice", "-d", "app", "-c", "select current_database()"]
        assert run(*asked, env=os.environ | {"PGPASSWORD": PASSWORDS["alice"]}).strip() == "app"
        for name in ("pgweir.ini", "userlist.txt"):
            assert image.owner(f"/run/pgweir/{name}") == "pgbouncer:pgbouncer 600"
    finally:
        process.kill()
        said = process.communicate()[0].decode()
    assert PASSWORDS["alice"] not in said


def test_the_programs_of_health_checks_and_operators(image):
    """psql, pg_isready and pkill run as the image's user, without Perl; they are those that the Dockerfile names."""
    named = re.search(r"tools\.sh /out (.*)", DOCKERFILE.read_text())[1]
    assert [word.rsplit("/", 1)[1] for word in named.split()] == TOOLS
    for tool in TOOLS:
        assert image.run(f"/usr/bin/{tool}", "--version", user=one("USER"))


def test_the_slim_image_lacks_the_tools_alone():
    """`--target slim` is the image without the programs of health checks and operators; nothing else is added after it."""
    after = re.sub(r"^#.*\n", "", DOCKERFILE.read_text().split("FROM slim\n")[1], flags=re.MULTILINE)
    assert after.strip() == "COPY --from=tools /out/ /"


def test_the_dockerfile_has_no_secret():
    """No variable of the image is a secret, and no configuration is copied into it."""
    assert not re.search(r"PASSWORD|SECRET|DATABASE_URL|userlist|pgweir\.ini", DOCKERFILE.read_text(), re.IGNORECASE)


def test_the_dockerfile_is_clean():
    """hadolint finds nothing."""
    hadolint = CACHE / "kubernetes" / "python" / "bin" / "hadolint"
    if not hadolint.exists():
        pytest.skip("needs hadolint (tests/kubernetes/install.sh)")
    run(hadolint, DOCKERFILE)
