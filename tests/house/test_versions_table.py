"""docs/versioning.md says which server of each major version the tests run, and when."""

from __future__ import annotations

import re

from tests.support.folders import ROOT
from tests.support.installations import NEWEST, NPM_PACKAGES, OLDEST, WHEELS, versions

DEBIANS = 15
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (gate|soak) \| (.+) \|$", re.MULTILINE)


def rows() -> dict[int, tuple[str, str, str]]:
    found = ROW.findall((ROOT / "docs" / "versioning.md").read_text())
    return {int(major): (server, when, ran) for major, server, when, ran in found}


def test_the_table_has_every_version() -> None:
    assert list(rows()) == list(range(OLDEST, NEWEST + 1))


def test_the_table_names_the_servers_that_the_tests_take() -> None:
    table = rows()
    for major, (package, _) in WHEELS.items():
        name, _, version = package.partition("==")
        assert table[major][0] == f"PyPI `{name}` {version}"
    for major, package in NPM_PACKAGES.items():
        name, _, version = package.rpartition("@")
        assert table[major][0] == f"npm `{name}` {version}"
    assert table[DEBIANS] == ("Debian 12", "gate", "all tests")


def test_the_table_says_what_only_the_soak_runs() -> None:
    table = rows()
    for parameter in versions([*WHEELS, *NPM_PACKAGES]):
        (major,) = parameter.values
        assert isinstance(major, int)
        in_soak = any(mark.name == "soak" for mark in parameter.marks)
        assert table[major][1] == ("soak" if in_soak else "gate")
