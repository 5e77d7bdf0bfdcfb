"""`walkeeper gate --exec`: a server that another program starts and stops, as Patroni does. Shell.

    start = prepare(command, roles, door_directory)      then exec start.command, which is postgres
    await open_when_durable(guard, start.ticket, say=…)      in the background

Closed are the start of a primary, and that of a standby whose data was a primary's last. Patroni
starts a primary as a standby behind a crash of the machine. It then replays WAL of its own that no
quorum may have. Other standbys have WAL of the log, and are never closed.

If the background ends early, the server stays closed. It never ends because of a refusal.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from walkeeper_admin.closed_start import (
    SAY_EVERY_S,
    Opened,
    reload_rules,
    running_pid,
    wait_durable,
)
from walkeeper_admin.primary.door import Door, OwnFiles
from walkeeper_common.ancestry.ancestry_facts import SameBranch
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.control_data import (
    InvalidControlData,
    State,
    parse_control_data,
)
from walkeeper_proposer.postgres.primary_sql import NotConnected, connected
from walkeeper_restore.standby_check.checking import Where, check, explained
from walkeeper_restore.standby_check.data_directory import LocalFiles

ASK_TIMEOUT_S = 10.0
POLL_S = 0.2
# The first words with which postgres is no server.
OTHER_MODES = (
    *("--single", "--boot", "--check", "--describe-config"),
    *("--version", "-V", "--help", "-?"),
)
OF_A_STANDBY = (State.SHUT_DOWN_IN_RECOVERY, State.IN_ARCHIVE_RECOVERY)
REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"


@dataclass(frozen=True, slots=True)
class Start:
    """A command to become; `ticket` is None if it admits all clients from the beginning."""

    command: tuple[str, ...]
    data_directory: Path | None = None
    ticket: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """The background's settings. `log` is None if nobody named safekeepers."""

    dsn: str
    data_directory: Path
    door: Door
    pid: int
    log: Where | None


def prepare(command: Sequence[str], roles: Sequence[str], directory: Path | None) -> Start:
    """Close the door if the start has to be closed, and return the command with its arguments."""
    program, *arguments = command
    if (arguments and arguments[0] in OTHER_MODES) or "-C" in arguments:
        return Start(tuple(command))
    data_directory = Path(_asked(command, "data_directory"))
    if running_pid(data_directory) is not None:  # postgres says so, and its door stays as it is
        return Start(tuple(command))
    own = OwnFiles(*(_asked(command, name) for name in ("config_file", "hba_file", "ident_file")))
    door = Door.beside(data_directory, directory)
    closes = may_show_more_than_the_log(data_directory)
    ticket = door.close(own, roles) if closes else door.prepare(own, roles)
    return Start((program, *arguments, *door.arguments), data_directory, ticket)


def may_show_more_than_the_log(data_directory: Path) -> bool:
    """Return True unless the server starts as a standby whose data was a standby's before.

    A base backup and a data directory behind pg_rewind have a backup_label: they never ran here.
    """
    if not (data_directory / "standby.signal").exists():
        return True
    if (data_directory / "backup_label").exists():
        return False
    try:
        content = (data_directory / "global" / "pg_control").read_bytes()
        return parse_control_data(content).state not in OF_A_STANDBY
    except (OSError, InvalidControlData):
        return True


def in_background(run: Callable[[], object]) -> None:
    """Run a function in a process that is nobody's child: postgres reaps its own children alone."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


async def open_when_durable(
    guard: Guard, ticket: str, *, say: Callable[[str], None]
) -> Opened | None:
    """Open the door when a quorum has all WAL that the server shows, and reload.

    Return None if the server ends before, or if the door was opened or closed anew meanwhile. Wait
    without a limit. Say a refusal, again every SAY_EVERY_S, and try again.
    """
    loop = asyncio.get_running_loop()
    began_s, said, say_at_s = loop.time(), "", loop.time() + SAY_EVERY_S
    while _is_alive(guard.pid) and guard.door.ticket() == ticket:
        try:
            lsn = await wait_durable(guard.dsn, say)
            if lsn is None:
                lsn = await _log_has_all(guard)
            if not await asyncio.to_thread(guard.door.open, ticket):
                return None
            await reload_rules(guard.dsn)
            return Opened(lsn, loop.time() - began_s)
        except Refused as error:
            now_s, text = loop.time(), str(error)
            is_news = text != said and not isinstance(error, NotConnected)
            if is_news or now_s >= say_at_s:
                said, say_at_s = text, now_s + SAY_EVERY_S
                say(f"closed: {text}")
        await asyncio.sleep(POLL_S)
    return None


async def _log_has_all(guard: Guard) -> Lsn:
    """Return the LSN that a standby has replayed if the log has all of it; else raise Refused."""
    async with connected(guard.dsn) as sql:
        text = await sql.fetchval(REPLAYED)
    if guard.log is None:
        raise Refused(
            "the server is a standby with WAL of its own from before. Without --safekeepers it "
            "stays closed until its promotion"
        )
    if text is None:
        raise Refused("the standby has replayed nothing yet")
    replayed_lsn = Lsn.parse(text)
    files = LocalFiles(str(guard.data_directory))
    checked = await asyncio.to_thread(check, files, guard.log, replayed_lsn=replayed_lsn)
    verdict = checked.verdict
    if not isinstance(verdict, SameBranch) or verdict.ahead_bytes:
        raise Refused(f"the standby stays closed: {explained(verdict, guard.log.cluster)}")
    return replayed_lsn


def _is_alive(pid: int) -> bool:
    """Return False also for a zombie, which a parent that does not reap leaves behind."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


def _asked(command: Sequence[str], name: str) -> str:
    """Return the value that postgres would start with; its own text is on stderr if it fails."""
    program, *arguments = command
    words = [program, "-C", name, *arguments]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=ASK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{program} -C {name}: {error}. COMMAND has to be postgres itself") from error
    if done.returncode:
        raise Refused(f"{program} -C {name} ended with {done.returncode}: mend its configuration")
    return os.fsdecode(done.stdout).rstrip("\n")
