"""The documents hold what they say, as far as a program can tell: links lead somewhere, and example files are good."""

import re
import shutil
import subprocess
import sys

import pytest

from harness.machine import REPOSITORY, give, scratch_folder
from harness.pooler import binary, kind

PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/**/README.md"), REPOSITORY / "tests" / "README.md"])

#: PostgreSQL's functions in the page on authentication.
AUTHENTICATION = REPOSITORY / "docs" / "configure" / "authentication.md"


def blocks(page, language):
    """The text of each block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    """Each relative link names a file that is there, and a heading that it has."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(target)
        elif heading:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
            if heading not in anchors:
                broken.append(target)
    assert not broken


#: What newcomers look for in README: the page, and a word of their question that its link must have.
LOOKED_FOR = {
    "docs/start/docker.md": "Docker",
    "docs/start/kubernetes.md#cloudnativepg": "CloudNativePG",
    "docs/start/drivers.md": "Django",
    "docs/start/clouds.md": "RDS",
    "docs/operate/high-availability.md": "high availability",
    "docs/faq.md#what-can-pgweir-not-do": "cannot do",
}


@pytest.mark.parametrize("target", LOOKED_FOR)
def test_the_readme_leads_to_what_newcomers_look_for(target):
    """Each page has a link before the table of peers, which a reader finds by a word of the question."""
    text, _, _ = (REPOSITORY / "README.md").read_text().partition("## Compared with its peers")
    [name] = re.findall(rf"\[([^\]]+)\]\({re.escape(target)}\)", text)
    assert LOOKED_FOR[target] in name


@pytest.mark.skipif(kind() == "pgbouncer", reason="the documents are pgweir's")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "ini")], ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_example_files_are_good(page, certificates):
    """Each whole configuration file on a page passes `pgweir check`. The files that it names are made up."""
    folder = scratch_folder("docs")
    try:
        for text in blocks(page, "ini"):
            if "[databases]" not in text or "[pgbouncer]" not in text or "%include" in text:
                continue
            (folder / "userlist.txt").write_text('"pgweir" "secret"\n"admin" "secret"\n"shop" "secret"\n')
            for name, kept in (("server.crt", certificates.crt("server")), ("server.key", certificates.key("server")), ("ca.crt", certificates.crt("ca"))):
                shutil.copy(kept, folder / name)
            text = re.sub(r"(/etc/pgweir/|(?<== ))(userlist\.txt|server\.crt|server\.key|ca\.crt)", rf"{folder}/\2", text)
            (folder / "userlist.txt").chmod(0o640)
            # What every configuration needs, if the page does not say it.
            needed = {"listen_addr": "127.0.0.1", "auth_file": folder / "userlist.txt"}
            lacking = [f"{name} = {value}\n" for name, value in needed.items() if not re.search(rf"^{name} *=", text, re.MULTILINE)]
            text += "\n[pgweir]\n" + "".join(lacking)
            file = folder / "pgweir.ini"
            file.write_text(text)
            give(folder)
            checked = subprocess.run([binary(), "check", file], capture_output=True, text=True)
            said = checked.stdout + checked.stderr
            assert checked.returncode == 0 and "no errors and no warnings" in said, f"{text}\n{said}"
    finally:
        shutil.rmtree(folder)


def test_diagrams_are_what_their_script_draws():
    """The committed SVG files are those that draw.py writes."""
    done = subprocess.run([sys.executable, REPOSITORY / "docs" / "img" / "draw.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_function_for_auth_query_works(pg):
    """The SQL of the page on authentication, run as it stands, gives a user's secret to the user pgweir and to no other user."""
    [sql] = blocks(AUTHENTICATION, "sql")
    pg.sql("create database asked")
    try:
        pg.sql(sql, database="asked")
        asked = pg.sql("select * from (values (set_config('role', 'pgweir', false))) a, public.pgweir_user('alice')", database="asked")
        assert asked == [("pgweir", *pg.sql("select rolname::text, rolpassword from pg_authid where rolname = 'alice'")[0])]
        script = "set role alice; select public.pgweir_user('alice')"
        done = subprocess.run(
            ["psql", "-X", "-h", str(pg.folder), "-p", str(pg.port), "-U", "postgres", "-d", "asked", "-c", script], capture_output=True, text=True
        )
        assert "permission denied for function pgweir_user" in done.stderr
    finally:
        pg.sql("drop database asked with (force)")
        pg.sql("drop role if exists pgweir")


def test_the_tests_that_the_security_page_names_exist():
    """Each vulnerability in SECURITY.md has a test here or among the conversations, by the name that the page gives."""
    rows = [line for line in (REPOSITORY / "SECURITY.md").read_text().splitlines() if line.startswith("| CVE-")]
    named = [name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row.rsplit("|", 2)[1])]
    sources = [*REPOSITORY.glob("tests/blackbox/*.py"), *REPOSITORY.glob("crates/core/tests/conversations/*.rs")]
    texts = "".join(path.read_text() for path in sources)
    assert len(rows) > 12 and not [name for name in named if not re.search(rf"\b(def|fn) {name}\(", texts)]
