"""A planned hand-over: the primary stops, its standby takes over, and no commit is lost. A shell.

    await switch_over(settings, say=…) -> Switched

Everything that can be checked is checked while the primary still works: then a refusal costs no
commit. Commits stop when the command of the operator begins to stop the primary. They go on when
the log's quorum has the first commit of the standby.

A primary that is stopped cleanly sends all its WAL first, also its shutdown checkpoint. So the
standby has all of it, and the old primary can come back as a standby without pg_rewind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import asyncpg

from walkeeper_admin.operators_commands import run_in_shell
from walkeeper_admin.primary.standby_names import PARAMETER, configuration_line, setting_for
from walkeeper_admin.replaying import finish, prepare
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_proposer.postgres.primary_sql import NotConnected, connected
from walkeeper_proposer.settling import settle

LAG_BYTES_MAX = 64 << 20  # a standby replays this in about a second
LINGER_S = 1.0
POLL_S = 0.02
FOLLOW_SUFFIX = "_follow"
PRIMARY = """
SELECT pg_is_in_recovery(),
    CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn()::text END
"""
STANDBY = """
SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text,
    current_setting('synchronous_standby_names'),
    CASE WHEN NOT pg_is_in_recovery() THEN ''
        WHEN pg_is_wal_replay_paused()
        THEN 'its replay is paused: run SELECT pg_wal_replay_resume()'
        WHEN current_setting('recovery_min_apply_delay') <> '0'
        THEN 'recovery_min_apply_delay is ' || current_setting('recovery_min_apply_delay')
        ELSE '' END,
    (SELECT string_agg(DISTINCT application_name, ' ') FROM pg_stat_activity
        WHERE backend_type = 'walsender' AND application_name LIKE '%\\_follow')
"""
SYNCHRONOUS = (
    "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))"
)
PROMOTE, IN_RECOVERY = "SELECT pg_promote(false)", "SELECT pg_is_in_recovery()"
FIRST_COMMIT = "SELECT pg_logical_emit_message(true, 'walkeeper', 'switchover')"

UNCHANGED = "The primary works on and no server was changed"
IF_STOPPED = (
    "If the primary is stopped, run `walkeeper settle --seal --replayed-by` with the standby's "
    "DSN, then promote the standby. Or start the primary again, and its proposer with --resume"
)
STOPPED = (
    "The old primary is stopped and commits are not possible. Mend this and run `walkeeper settle "
    "--seal --replayed-by`, then promote the standby. Or start the old primary again, and its "
    "proposer with --resume"
)
PROMOTED = (
    "The promotion has begun, so leave the old primary stopped. Commits go on at the new one when "
    "its proposer is there: see the log of `walkeeper proposer --follow`, or start `walkeeper "
    "proposer` with the new one's --dsn"
)


@dataclass(frozen=True, slots=True)
class SwitchoverSettings:
    """The command's flags. `stop` is a command of the shell that stops the primary cleanly."""

    safekeepers: tuple[Address, ...]
    primary: str
    standby: str
    stop: str
    cluster: str = "main"
    slot: str = "walkeeper"
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Switched:
    """The result: the log's end at the old primary, and how long no commit was possible."""

    end_lsn: Lsn
    timeline: int | None
    stopped_s: float
    without_commits_s: float


@dataclass(frozen=True, slots=True)
class StandbyState:
    """The server that takes over, as it is before."""

    in_recovery: bool
    replayed_lsn: Lsn
    standby_names: str
    followers: tuple[str, ...]
    held_back: str = ""


async def switch_over(settings: SwitchoverSettings, *, say: Callable[[str], None]) -> Switched:
    """Hand over from the primary to the standby. Wait until a commit has returned there.

    Raise Refused before anything has changed, or with the steps that bring the old primary back.
    """
    try:
        flush_lsn = await _flush_lsn(settings.primary)
    except NotConnected as error:
        raise Refused(f"--primary: {error.reason}. No server was changed. {IF_STOPPED}") from error
    try:
        state = await _standby_state(settings.standby)
    except NotConnected as error:
        raise Refused(f"--standby: {error.reason}. {UNCHANGED}") from error
    reason = reason_against(state, flush_lsn)
    if reason is not None:
        raise Refused(f"{reason}. {UNCHANGED}")
    where = settings.standby, settings.safekeepers, settings.cluster
    await prepare(*where, slot=settings.slot, say=say)
    say("the primary writes a checkpoint, so that it stops quickly")
    await _checkpoint(settings.primary, settings.timeout_s)
    began_s = time.monotonic()
    try:
        await _stop(settings, say)
    except asyncio.CancelledError:  # Ctrl-C
        say(f"interrupted: --stop may have stopped the primary. {IF_STOPPED}")
        raise
    stopped_s = time.monotonic() - began_s
    with _going_on(STOPPED, say):
        end_lsn, timeline = await _bring_to_the_end(settings, say)
    with _going_on(PROMOTED, say):
        await _promote(settings.standby, settings.timeout_s)
    return Switched(end_lsn, timeline, stopped_s, time.monotonic() - began_s)


@contextmanager
def _going_on(text: str, say: Callable[[str], None]) -> Iterator[None]:
    """Say how to go on from here, after an error and after Ctrl-C, which cancels the task."""
    try:
        yield
    except Refused as error:
        raise Refused(f"{error}. {text}") from error
    except asyncio.CancelledError:
        say(f"interrupted. {text}")
        raise


def reason_against(state: StandbyState, flush_lsn: Lsn) -> str | None:
    """Return why this standby cannot take over within a second or so, or None. Pure."""
    if not state.in_recovery:
        return "the server that should take over is no standby"
    if why := state.held_back:
        return f"the standby replays nothing for now: {why}"
    lag = flush_lsn - state.replayed_lsn
    if lag > LAG_BYTES_MAX:
        return (
            f"the standby has {lag >> 20} MB to replay, more than {LAG_BYTES_MAX >> 20} MB: wait "
            "until it has caught up"
        )
    if not state.followers:
        return (
            "no proposer waits beside the standby: start `walkeeper proposer --follow` with the "
            "standby's --dsn"
        )
    if not state.standby_names:
        name = state.followers[0].removesuffix(FOLLOW_SUFFIX)
        return (
            f"{PARAMETER} is empty on the standby, so it would acknowledge commits alone: set "
            f"{configuration_line(setting_for(name))} there, and reload"
        )
    return None


async def _flush_lsn(dsn: str) -> Lsn:
    async with connected(dsn) as sql:
        found = await sql.fetchrow(PRIMARY)
    assert found is not None, PRIMARY
    if found[0]:
        raise Refused(
            "the server of --primary is in recovery: name the present primary there. No server was "
            "changed"
        )
    return Lsn.parse(found[1])


async def _standby_state(dsn: str) -> StandbyState:
    async with connected(dsn) as sql:
        found = await sql.fetchrow(STANDBY)
    assert found is not None, STANDBY
    in_recovery, replayed, names, held_back, followers = found
    replayed_lsn = Lsn(0) if replayed is None else Lsn.parse(replayed)
    waiting = tuple((followers or "").split())
    return StandbyState(in_recovery, replayed_lsn, names, waiting, held_back)


async def _checkpoint(dsn: str, timeout_s: float) -> None:
    async with connected(dsn) as sql:
        await sql.execute("SET statement_timeout = 0")
        await sql.execute("CHECKPOINT", timeout=timeout_s)


async def _stop(settings: SwitchoverSettings, say: Callable[[str], None]) -> None:
    """Run the operator's command; raise Refused if the primary still answers after it."""
    say(f"stopping the primary: {settings.stop}")
    try:
        code, output = await run_in_shell(settings.stop, settings.timeout_s)
    except TimeoutError:
        code, output = -1, f"no end within {settings.timeout_s:g} s"
    last = in_one_line(output)[-200:]
    if await _answers(settings.primary):
        raise Refused(
            f"the primary still accepts connections after --stop, which ended with {code}"
            f"{f' ({last})' if last else ''}. No standby was promoted: stop that server, or "
            "correct --stop, and repeat"
        )
    if code:
        say(f"--stop ended with {code}, but the primary is down ({last})")


async def _answers(dsn: str) -> bool:
    try:
        async with connected(dsn):
            return True
    except Refused:
        return False


async def _bring_to_the_end(
    settings: SwitchoverSettings, say: Callable[[str], None]
) -> tuple[Lsn, int | None]:
    """Seal the log, and let the standby have all of it; return its end and the next timeline."""
    addresses, cluster, timeout_s = settings.safekeepers, settings.cluster, settings.timeout_s
    end = await settle(addresses, cluster, seal=True, timeout_s=timeout_s, linger_s=LINGER_S)
    _, timeline = await finish(
        settings.standby, addresses, cluster, end, timeout_s=timeout_s, say=say
    )
    say(f"promoting the standby at {end.consensus_lsn}")
    return end.consensus_lsn, timeline


async def _promote(dsn: str, timeout_s: float) -> None:
    """Promote the standby, and return when a quorum has a commit of it."""
    async with connected(dsn) as sql:
        await sql.execute("SET statement_timeout = 0")
        deadline_s = time.monotonic() + timeout_s
        await sql.execute(PROMOTE)  # PostgreSQL itself would look each 0.1 s
        while await sql.fetchval(IN_RECOVERY):
            if time.monotonic() > deadline_s:
                raise Refused(f"the standby was not promoted within {timeout_s:g} s: see its log")
            await asyncio.sleep(POLL_S)
        while not await sql.fetchval(SYNCHRONOUS):
            if time.monotonic() > deadline_s:
                raise Refused(
                    f"the standby is promoted, and no proposer was synchronous there within "
                    f"{timeout_s:g} s: see the log of `walkeeper proposer --follow`"
                )
            await asyncio.sleep(POLL_S)
        await sql.execute("SET synchronous_commit = on")
        try:
            await sql.execute(FIRST_COMMIT, timeout=timeout_s)
        except (TimeoutError, asyncpg.PostgresError) as error:
            raise Refused(
                f"the standby is promoted, and its first commit did not return: {error}; "
                "`walkeeper status` names what it waits for"
            ) from error
