"""The licence, the types, the version, the decisions and the rules for contributors agree."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import tarfile
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.folders import PRODUCT, ROOT
from tests.support.image_build import copied
from walkeeper_admin import status
from walkeeper_cli.program import run
from walkeeper_common.shell.http.http_endpoints import Endpoints, serve_http
from walkeeper_common.shell.process.version import UNKNOWN, program_version
from walkeeper_common.wire.requests import StatusRequest, StatusResponse
from walkeeper_fastpath.switch import state
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# The text at https://www.apache.org/licenses/LICENSE-2.0.txt, byte for byte.
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_the_licence_is_apaches_own_text_and_the_package_carries_it() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    project = PROJECT["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE", "NOTICE"]
    for author in project["authors"]:
        assert author["name"] in (ROOT / "NOTICE").read_text()


def test_the_image_carries_the_licence_too() -> None:
    assert set(PROJECT["project"]["license-files"]) <= set(copied())


def packages() -> list[Path]:
    """Return the folder of each package that the wheel carries."""
    folders = PRODUCT
    return sorted(
        init.parent for folder in folders for init in (ROOT / folder).glob("*/__init__.py")
    )


def test_the_source_distribution_takes_along_every_folder() -> None:
    """`make dist` compares it with the commit; this one is quick, and in the gate."""
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    grafted = {line.removeprefix("graft ") for line in lines if line.startswith("graft ")}
    assert grafted == {*PRODUCT, ".ci", "docker", "docs", "tests"}
    assert {"constraints.txt", "mkdocs.yml"} <= set(" ".join(lines).split())


def test_the_rooms_are_the_packages_and_import_linter_knows_each() -> None:
    text = (
        (ROOT / "docs/architecture.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
    )
    rooms = set(re.findall(r"^\| `([\w/]+)`", text, re.MULTILINE))
    assert not [room for room in rooms if not (ROOT / room).is_dir()]
    found = {str(p.relative_to(ROOT)) for p in packages()}
    assert found == {room for room in rooms if "/" in room and not room.startswith("tests")}
    floors = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]
    assert {name.strip() for floor in floors for name in floor.split("|")} == {
        Path(each).name for each in found
    }


def test_a_broken_link_of_the_site_fails_the_check() -> None:
    """`mkdocs build --quiet` hides warnings from the count by which `strict` fails."""
    builds = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in line
    ]
    assert builds and not [line for line in builds if "--quiet" in line]
    assert "strict: true" in (ROOT / "mkdocs.yml").read_text()


def test_every_package_says_that_it_is_typed() -> None:
    """Without py.typed a type checker ignores the annotations of an installed package."""
    found = packages()
    assert len(found) >= 9
    assert not [str(p.relative_to(ROOT)) for p in found if not (p / "py.typed").is_file()]
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]


def test_every_package_keeps_the_import_rules() -> None:
    rules = PROJECT["tool"]["importlinter"]["root_packages"]
    assert sorted(rules) == sorted(package.name for package in packages())


VERSION = PROJECT["project"]["version"]


def test_every_place_shows_the_version_of_pyproject(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--version"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [f"walkeeper {VERSION}", f"compiled fast path: {state()}"]
    assert asyncio.run(_status_of_a_safekeeper(tmp_path))["version"] == VERSION
    assert asyncio.run(_status_over_http())["version"] == VERSION
    assert "version" in status.COLUMNS, "`walkeeper status --json` passes it on"


async def _status_of_a_safekeeper(folder: Path) -> dict[str, object]:
    settings = SafekeeperSettings(1, str(folder), ("127.0.0.1", 0))
    async with asyncio.TaskGroup() as group:
        catalog = LogCatalog(settings, group, lambda defect: None)
        answer = await catalog.administer(StatusRequest("main"))
    assert isinstance(answer, StatusResponse)
    document: dict[str, object] = json.loads(answer.document)
    return document


async def _status_over_http() -> dict[str, object]:
    quiet = Endpoints(not_ready=lambda: None, status=dict, samples=list)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_http(("127.0.0.1", 0), quiet, on_listening=lambda _, found: port.set_result(found))
    )
    url = f"http://127.0.0.1:{await port}/status"
    answer: bytes = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=20).read())
    serving.cancel()
    await asyncio.wait([serving])
    document: dict[str, object] = json.loads(answer)
    return document


def test_no_file_beside_pyproject_repeats_the_version() -> None:
    """The changelog names it as a release; a second text would be forgotten at the next one."""
    literal = re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])")
    repeated = [str(p.relative_to(ROOT)) for p in _texts() if literal.search(p.read_text())]
    assert not repeated


def _texts() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "Makefile")
    for folder in (*PRODUCT, "docs", "docker"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in ("", ".py", ".md", ".yaml", ".yml", ".service"):
                yield path


def test_a_tree_without_an_installation_has_an_unknown_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert program_version.__wrapped__() == UNKNOWN


def test_an_sdist_does_not_depend_on_who_packed_it_when() -> None:
    dist = _program(".ci/dist.py")

    def packed(mtime: int, owner: str, mode: int) -> bytes:
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w:gz") as archive:
            for name, text in (("b", b"#!/bin/sh\n"), ("a", b"text\n")):
                member = tarfile.TarInfo(f"walkeeper/{name}")
                member.size, member.mtime, member.uname = len(text), mtime, owner
                member.mode = mode | (0o100 if name == "b" else 0)
                archive.addfile(member, io.BytesIO(text))
        return held.getvalue()

    first, second = packed(1, "root", 0o600), packed(2, "joan", 0o664)
    assert first != second
    assert dist.repacked(first, 3) == dist.repacked(second, 3)
    with tarfile.open(fileobj=io.BytesIO(dist.repacked(first, 3))) as archive:
        found = {member.name: (member.mtime, member.mode) for member in archive.getmembers()}
        assert found == {"walkeeper/a": (3, 0o644), "walkeeper/b": (3, 0o755)}
        text = archive.extractfile("walkeeper/a")
        assert text is not None and text.read() == b"text\n"


def _program(name: str) -> Any:
    """Return a program of .ci as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / ".ci"))  # they import each other
        spec.loader.exec_module(module)
    return module


ADR = ROOT / "docs" / "adr"
SECTIONS = ("Context", "Decision", "Rejected", "Consequences")
DECISION = re.compile(
    r"# (\d{4})\. (.+)\n\n\* Date: (\d{4}-\d\d-\d\d)\n\* Status: (.+)\n\n"
    + "".join(rf"## {name}\n\n(?!#)(?:.|\n)+?\n" + r"(?:\n|\Z)" for name in SECTIONS)
)


def decisions() -> list[Path]:
    return sorted(ADR.glob("[0-9]*.md"))


def test_the_list_of_decisions_agrees_with_the_files() -> None:
    listed = re.findall(
        r"^\| \[(\d{4})\]\((.+?)\) \| (.+) \| (\S+) \| (.+) \|$",
        (ADR / "README.md").read_text(),
        re.MULTILINE,
    )
    found = []
    for path in decisions():
        parsed = DECISION.fullmatch(path.read_text())
        assert parsed, f"{path.name}: {', '.join(SECTIONS)} in this order, with a date and a status"
        number, title, date, state = parsed.groups()
        found.append((number, path.name, title, date, state))
        words = re.findall(r"\w+", title.lower().replace("'", ""))
        assert path.name == f"{'-'.join([number, *words])}.md"
    assert listed == found
    assert [int(number) for number, *_ in found] == list(range(1, len(found) + 1))
    assert {path.name for path in ADR.iterdir()} == {"README.md", *(p.name for p in decisions())}


def test_a_decision_is_dated_and_its_successor_exists() -> None:
    numbers = {path.name[:4] for path in decisions()}
    for path in decisions():
        parsed = DECISION.fullmatch(path.read_text())
        assert parsed is not None
        datetime.date.fromisoformat(parsed[3])
        successor = re.fullmatch(r"superseded by (\d{4})", parsed[4])
        assert parsed[4] == "accepted" or (successor and successor[1] in numbers), path.name


def test_every_file_that_a_decision_names_exists() -> None:
    for path in decisions():
        for name in re.findall(r"`((?:tests/|scenarios/)[\w./-]+)`", path.read_text()):
            place = ROOT / name if name.startswith("tests/") else ROOT / "tests/consensus" / name
            assert place.is_file(), f"{path.name}: {name}"


PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        if re.match(r"\w+:", file):
            continue
        place = page.parent / file if file else page
        assert place.exists(), f"{target}: no such file"
        assert not anchor or anchor in _anchors(place), f"{target}: no such heading"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its own, and those that GitHub gives its headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    own = re.findall(r"""<a (?:id|name)=["']([\w-]+)["']""", text)
    return {*own, *(heading.replace(" ", "-") for heading in plain)}


def test_the_newest_release_in_the_changelog_is_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    first, *releases = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    assert first == "[Unreleased]"
    named = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", line) for line in releases]
    assert all(named), releases
    versions = [
        (tuple(map(int, line[1].split("."))), datetime.date.fromisoformat(line[2]))
        for line in named
        if line is not None
    ]
    assert versions == sorted(versions, reverse=True)
    assert ".".join(map(str, versions[0][0])) == VERSION


def test_every_make_target_that_a_contributor_is_sent_to_exists() -> None:
    """`make soak` and others: a page that names a target that is gone sends people astray."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("CONTRIBUTING.md", "SECURITY.md", "docs/style.md", "docs/versioning.md"):
        named = set(re.findall(r"`make ([a-z-]+)", (ROOT / page).read_text()))
        assert named <= targets, f"{page}: {named - targets}"


def test_pre_commit_runs_what_make_check_runs_and_fetches_no_repository() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    makefile = (ROOT / "Makefile").read_text()
    recipes = re.findall(r"^check-\w+:\n((?:\t.+\n)+)", makefile, re.MULTILINE)
    checked = re.findall(r"^\t\$\(BIN\)/(.+)$", "".join(recipes), re.MULTILINE)
    assert len(checked) == 4
    # The gate may look at the format where a hook mends it.
    wanted = {f".venv/bin/{line}".replace("ruff format --check", "ruff format") for line in checked}
    missing = wanted - {hook["entry"] for hook in hooks}
    assert not missing, f"{missing}: a line of `make check` has no hook, or another one"


def _outside_make() -> dict[str, str]:
    """Return the environment without what a `make` that runs the tests tells its own children."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def test_make_lets_python_keep_bytecode() -> None:
    done = subprocess.run(
        ["make", "--eval=shown: ; @echo [$$PYTHONDONTWRITEBYTECODE]", "shown"],
        cwd=ROOT,
        env=_outside_make() | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
