"""Read docs/kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.folders import ROOT

FOLDER = ROOT / "docs" / "kubernetes"


def documents() -> list[dict[str, Any]]:
    """Return every object of every file, in order."""
    files = sorted(FOLDER.glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of one kind by their names."""
    return {found["metadata"]["name"]: found for found in documents() if found["kind"] == kind}


def workloads() -> Iterator[dict[str, Any]]:
    """Give each object with pods."""
    yield from (found for found in documents() if "template" in found.get("spec", {}))


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
