"""Start a primary closed, and open it when a quorum has all WAL that it shows. A shell.

    await start_closed(settings, say=…) -> Opened

After a crash a primary shows commits that waited for the quorum and were never acknowledged. A
failover may lose these. So pg_hba.conf admits a few roles alone until a commit has returned: that
commit returns when a quorum has it, and all WAL before it.

The open rules are kept beside pg_hba.conf, and come back by one rename. A killed command leaves the
server closed, and the same command goes on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from walkeeper_admin.operators_commands import run_command
from walkeeper_admin.primary.door import SESSION, Door
from walkeeper_admin.primary.hba_rules import ANY_ENCODING, narrowed
from walkeeper_admin.primary.running_server import refuse_another, running_pid
from walkeeper_admin.primary.standby_names import PARAMETER
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_proposer.postgres.primary_sql import NO_LIMIT_S, connected

OPEN_SUFFIX = ".walkeeper_open"
POLL_S = 0.1
SAY_EVERY_S = 10.0
STATE = "SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names')"
LOADED = "SELECT extract(epoch FROM pg_conf_load_time())::float8"
STRANGER = """
SELECT usename FROM pg_stat_activity
WHERE backend_type IN ('client backend', 'walsender') AND usename <> ALL ($1) LIMIT 1
"""
# A warning alone says that the wait was cancelled, and a role may have set client_min_messages.
# `status` finds the session by its name.
WAITING = f"""
SET synchronous_commit = on; SET statement_timeout = 0; SET client_min_messages = warning;
SET application_name = {SESSION}
"""
COMMIT = "SELECT pg_logical_emit_message(true, 'walkeeper', 'gate')::text"


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The command's flags. `command` starts the server, and returns when it runs."""

    data_directory: Path
    dsn: str
    roles: tuple[str, ...]
    command: tuple[str, ...]
    hba_file: Path | None = None
    timeout_s: float = 60.0
    door_directory: Path | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The result: the LSN that a quorum has, or None for a standby, and how long it was closed."""

    lsn: Lsn | None
    closed_s: float


async def start_closed(settings: GateSettings, *, say: Callable[[str], None]) -> Opened:
    """Start the server, and return when clients are admitted.

    Go on with a server that an earlier run has closed. Raise Refused if the server runs otherwise,
    or if it does not start. Wait without a limit for the quorum: until then the server stays
    closed.
    """
    hba = settings.hba_file or settings.data_directory / "pg_hba.conf"
    pid, began_s = await asyncio.to_thread(running_pid, settings.data_directory), time.monotonic()
    if pid is None:
        await asyncio.to_thread(close, hba, settings.roles)
        say(f"{hba} admits {', '.join(settings.roles)} alone")
        await _start(settings.command, settings.timeout_s)
    elif await asyncio.to_thread(is_closed, hba, settings.roles):
        say(f"the server runs, and is closed to all but {', '.join(settings.roles)}: going on")
    else:
        raise Refused(
            f"the server of {settings.data_directory} runs (pid {pid}), so clients may be "
            "connected: stop it first. If an earlier `gate` has closed it, repeat that one's "
            "--dsn and --admit"
        )
    await _wait_started(settings.dsn, settings.timeout_s)
    if pid is not None:
        await _refuse_open(settings.dsn, hba, settings.roles)
    lsn = await wait_durable(settings.dsn, settings.data_directory, say)
    await asyncio.to_thread(reopen, hba)
    await reload_rules(settings.dsn)
    return Opened(lsn, time.monotonic() - began_s)


def close(hba: Path, roles: Sequence[str]) -> None:
    """Admit the roles alone, durably. The open rules of an earlier run stay those that are kept."""
    kept = hba.with_name(hba.name + OPEN_SUFFIX)
    try:
        if not kept.exists():
            _write(kept, hba.read_text(**ANY_ENCODING), like=hba)
        _write(hba, narrowed(kept.read_text(**ANY_ENCODING), roles, kept=str(kept)), like=hba)
    except FileNotFoundError as error:
        raise Refused(
            f"{error.filename}: {error.strerror}: name the data directory with -D, or the file "
            "with --hba-file (SHOW hba_file)"
        ) from error
    except OSError as error:
        raise Refused(
            f"{error.filename or hba}: {error.strerror}: run as the server's user"
        ) from error
    except Refused:
        if hba.read_text(**ANY_ENCODING) == kept.read_text(**ANY_ENCODING):
            kept.unlink()
        raise


def is_closed(hba: Path, roles: Sequence[str]) -> bool:
    """Return True if an earlier run has closed the file to all but these roles."""
    kept = hba.with_name(hba.name + OPEN_SUFFIX)
    try:
        return hba.read_text(**ANY_ENCODING) == narrowed(
            kept.read_text(**ANY_ENCODING), roles, kept=str(kept)
        )
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}: run as the server's user") from error


async def _refuse_open(dsn: str, hba: Path, roles: Sequence[str]) -> None:
    """Raise Refused if a server that runs has other rules in force, or if another role got in."""
    loaded_s, found = await _in_force(dsn, roles)
    changed_s = (await asyncio.to_thread(hba.stat)).st_mtime
    if loaded_s <= changed_s:
        raise Refused(
            f"the server has not loaded {hba} since it was closed, so clients may be connected: "
            "stop it first"
        )
    if found is not None:
        raise Refused(f"the server is closed, and {found} is connected still: stop it first")


async def _in_force(dsn: str, roles: Sequence[str]) -> tuple[float, str | None]:
    """Return when the server loaded its rules, and a connected role that they do not admit."""
    async with connected(dsn) as sql:
        return await sql.fetchval(LOADED), await sql.fetchval(STRANGER, list(roles))


def reopen(hba: Path) -> bool:
    """Put the open rules back, durably; return False if they are there already."""
    try:
        os.replace(hba.with_name(hba.name + OPEN_SUFFIX), hba)
    except FileNotFoundError:
        return False
    sync_path(hba.parent)
    return True


async def open_by_hand(settings: GateSettings) -> bool:
    """Admit all clients without a quorum; return False if the server was open already."""
    hba = settings.hba_file or settings.data_directory / "pg_hba.conf"
    was_closed = await asyncio.to_thread(reopen, hba)
    door = Door.beside(settings.data_directory, settings.door_directory)
    if await asyncio.to_thread(door.ticket) is not None:
        was_closed |= await asyncio.to_thread(door.open)
    with suppress(Refused):  # it does not run, and reads the rules when it starts
        await reload_rules(settings.dsn)
    return was_closed


def _write(path: Path, text: str, *, like: Path) -> None:
    """Write a file whole or not at all, with the owner and the mode of another one."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    status = like.stat()
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", **ANY_ENCODING) as file:
        file.write(text)
        file.flush()
        os.fchmod(descriptor, status.st_mode & 0o777)
        with suppress(PermissionError):
            os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fsync(descriptor)
    os.replace(made, path)
    sync_path(path.parent)


async def _start(command: Sequence[str], timeout_s: float) -> None:
    try:
        code = await run_command(command, timeout_s)
    except TimeoutError:
        raise Refused(f"{command[0]} did not end within {timeout_s:g} s: use pg_ctl -w") from None
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}. pg_hba.conf stays closed") from error
    if code:
        raise Refused(
            f"{command[0]} ended with {code}: see the server's log. pg_hba.conf stays "
            "closed, and the same command goes on"
        )


async def _wait_started(dsn: str, timeout_s: float) -> None:
    deadline_s, closed = time.monotonic() + timeout_s, "pg_hba.conf stays closed; run this again"
    while True:
        try:
            async with connected(dsn):
                return
        except Refused as error:
            if time.monotonic() > deadline_s:
                raise Refused(
                    f"{error}. Does COMMAND start the server, and does --dsn name it? {closed}"
                ) from error
        await asyncio.sleep(POLL_S)


async def wait_durable(dsn: str, data_directory: Path, say: Callable[[str], None]) -> Lsn | None:
    """Return an LSN when a quorum has all WAL before it, or None for a standby.

    Raise Refused, with the reason, if no quorum may have it, or for another directory's server.
    """
    async with connected(dsn) as sql:
        await refuse_another(sql, data_directory)
        found = await sql.fetchrow(STATE)
        assert found is not None, STATE
        in_recovery, names = found
        if in_recovery:
            return None
        if not names:
            raise Refused(
                f"{PARAMETER} is empty, so commits wait for no quorum: set the line of `walkeeper "
                "attach --print`, reload, and run this again. The server stays closed"
            )
        await sql.execute(WAITING)
        warnings: list[str] = []
        sql.add_log_listener(lambda _, notice: warnings.append(str(notice)))
        commit = asyncio.create_task(sql.fetchval(COMMIT, timeout=NO_LIMIT_S))
        while not (await asyncio.wait([commit], timeout=SAY_EVERY_S))[0]:
            say("closed: waiting until a quorum has all WAL of this server; see `walkeeper status`")
        try:
            lsn = Lsn.parse(commit.result())
        except asyncpg.PostgresError as error:
            raise Refused(f"PostgreSQL: {error}. The server stays closed") from error
        _, names = await sql.fetchrow(STATE) or (False, "")
    if warnings or not names:  # cancelled, or detached meanwhile: no quorum has confirmed it
        why = warnings[0] if warnings else f"{PARAMETER} is empty now"
        raise Refused(f"{why}. The server stays closed; --open admits all without a quorum")
    return lsn


async def reload_rules(dsn: str) -> None:
    """Let the server read pg_hba.conf again."""
    async with connected(dsn) as sql:
        await sql.execute("SELECT pg_reload_conf()")
