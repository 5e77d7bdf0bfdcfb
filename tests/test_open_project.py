"""What an open project has: a licence, types, one version, decisions, rules for contributors."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
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


def packages() -> list[Path]:
    """Return the folder of each package that the wheel carries."""
    folders = PROJECT["tool"]["setuptools"]["packages"]["find"]["where"]
    return sorted(
        init.parent for folder in folders for init in (ROOT / folder).glob("*/__init__.py")
    )


def test_every_package_says_that_it_is_typed() -> None:
    """Without py.typed a type checker ignores the annotations of an installed package."""
    found = packages()
    assert len(found) >= 9
    assert not [str(p.relative_to(ROOT)) for p in found if not (p / "py.typed").is_file()]
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]


def test_every_package_keeps_the_import_rules() -> None:
    rules = PROJECT["tool"]["importlinter"]["root_packages"]
    assert sorted(rules) == sorted(package.name for package in packages())
