"""Compare docs/kubernetes with the schemas of the API and of three operators: `make kubernetes`.

    python -m tests.kubernetes FOLDER       FOLDER has the node_modules of package.json

Kinds of Kubernetes itself: kubernetes-validate, strictly, for the oldest version that has all
fields, and for the newest that it knows. Kinds of cert-manager, CloudNativePG and the Prometheus
operator: the schemas of their own definitions, as the packages of kubernetes-models carry them.
Each schema also has to refuse a damaged copy. Exit status: 0, or 1 if a manifest does not fit.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.manifests import documents

# StatefulSet.spec.ordinals is stable from 1.31 on.
VERSIONS = ("1.31.0", "1.37.0")
OPERATORS = ("cert-manager.io/v1", "postgresql.cnpg.io/v1", "monitoring.coreos.com/v1")
VALIDATE = Path(__file__).with_name("validate.mjs")
TOOL_S = 300.0
FIELDS = {"StatefulSet": "replicas", "Cluster": "instances", "PodMonitor": "selector"}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fits_kubernetes(found: list[dict[str, Any]], version: str) -> bool:
    tool = Path(sys.executable).with_name("kubernetes-validate")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(found, file)
        file.flush()
        command = [str(tool), "--strict", "-k", version, file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S)
    say("".join(f"    {line}\n" for line in (done.stdout + done.stderr).splitlines()).rstrip())
    return done.returncode == 0


def fits_operators(found: list[dict[str, Any]], folder: Path) -> bool:
    node = shutil.which("node") or str(Path(sys.executable).with_name("node"))
    done = subprocess.run(
        [node, shutil.copy(VALIDATE, folder)],
        input=json.dumps(found),
        capture_output=True,
        text=True,
        timeout=TOOL_S,
    )
    say("".join(f"    {line}\n" for line in (done.stdout + done.stderr).splitlines()).rstrip())
    return done.returncode == 0


def damaged(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return a copy in which one field of a kind has a value of another type."""
    (wrong,) = [copy.deepcopy(d) for d in found if d["kind"] == kind]
    wrong["spec"][FIELDS[kind]] = ["three"]
    return [wrong]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    own = [found for found in documents() if found["apiVersion"] not in OPERATORS]
    others = [found for found in documents() if found["apiVersion"] in OPERATORS]
    is_good = True
    for version in VERSIONS:
        say(f"Kubernetes {version}: {len(own)} objects")
        is_good &= fits_kubernetes(own, version)
        is_good &= not fits_kubernetes(damaged(own, "StatefulSet"), version)
    say(f"cert-manager, CloudNativePG and the Prometheus operator: {len(others)} objects")
    is_good &= fits_operators(others, folder)
    for kind in ("Cluster", "PodMonitor"):
        is_good &= not fits_operators(damaged(others, kind), folder)
    say("all fit, and damaged ones do not" if is_good else "something does not fit")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
