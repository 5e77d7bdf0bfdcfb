"""The parts of a wheel as CycloneDX: its requirements, with the versions that the gate runs with.

The wheel has no library in it, and pip may take newer versions. The packages of Debian hold their
libraries, so cyclonedx-py makes their list.
"""

from __future__ import annotations

import json
import re
import zipfile
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path

REQUIREMENT = re.compile(r'([\w.-]+)(?:\[[^]]*\])?\s*([^;]*?)\s*(?:;\s*.*extra == "([\w-]+)")?')


def pinned_versions(constraints: str) -> dict[str, str]:
    lines = [line.split(";")[0].strip() for line in constraints.splitlines()]
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_sbom(wheel: Path, constraints: str, epoch: int) -> str:
    """Return the document: the same text for the same wheel, versions and time."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    versions, found = pinned_versions(constraints), dict[str, dict[str, object]]()
    for line in metadata.get_all("Requires-Dist", ()):
        parts = REQUIREMENT.fullmatch(line)
        assert parts is not None, f"{line=}"
        library, wanted, extra = normal(parts[1]), parts[2], parts[3]
        if library == metadata["Name"] or found.get(library, {}).get("scope") == "required":
            continue
        reference = f"pkg:pypi/{library}@{versions[library]}"
        found[library] = {
            "type": "library",
            "bom-ref": reference,
            "name": library,
            "version": versions[library],
            "purl": reference,
            "scope": "optional" if extra else "required",
            "properties": [{"name": "walkeeper:requirement", "value": wanted or "any"}],
        }
    own = f"pkg:pypi/{metadata['Name']}@{metadata['Version']}"
    component = {
        "type": "application",
        "bom-ref": own,
        "name": metadata["Name"],
        "version": metadata["Version"],
        "purl": own,
        "licenses": [{"license": {"id": metadata["License-Expression"]}}],
    }
    parts_of = [part for _, part in sorted(found.items())]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
            "component": component,
        },
        "components": parts_of,
        "dependencies": [{"ref": own, "dependsOn": [part["bom-ref"] for part in parts_of]}],
    }
    return json.dumps(document, indent=2) + "\n"
