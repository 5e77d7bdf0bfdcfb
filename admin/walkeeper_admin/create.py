"""`walkeeper create`: make a log on all its members, and the slot on the primary.

Two phases (docs/protocol.md R17): *prepare* gives each member its incarnation, *configure* the
same record to all. Both may be repeated until a proposer has been elected. After that `create`
initialises no member. A member without the log has then lost its promises and must be replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from walkeeper_admin.slot_in_use import refuse_slot_in_use
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.zones import (
    ack_rule,
    refuse_ack_quorum,
    refuse_zone_stop,
    zones_clause,
)
from walkeeper_common.quorum import (
    Configuration,
    LogKind,
    MemberSet,
    flaw_of_set,
    majority,
    member_id,
    member_name,
    member_set,
)
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import ConfigureLog, LogQuery, LogState, PrepareLog
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity
from walkeeper_proposer.logical.logical_check import flaw_of_encoding
from walkeeper_proposer.postgres.logical_primary import create_slot_command
from walkeeper_proposer.postgres.primary_identity import identify
from walkeeper_proposer.postgres.replication_connection import (
    ReplicationConnection,
    SlotExists,
    Unavailable,
)

NO_LOG = bytes(16)


@dataclass(frozen=True, slots=True)
class CreateSettings:
    """The command's flags."""

    safekeepers: tuple[Address, ...]
    dsn: str
    cluster: str = "main"
    slot: str = "walkeeper"
    ack_quorum: int | None = None
    allow_single_ack: bool = False
    if_not_exists: bool = False
    logical: bool = False
    timeout_s: float = 10.0
    zones: Mapping[int, str] = field(default_factory=dict)
    ack_zones: int = 0
    allow_zone_stop: bool = False


@dataclass(frozen=True, slots=True)
class Created:
    """The configuration that every member holds now.

    `in_use` is True if the log existed before, and --if-not-exists was given.
    """

    configuration: Configuration
    in_use: bool = False


async def create(settings: CreateSettings) -> Created:
    """Create the log and return its configuration; raise Refused with the reason on failure."""
    quorum = _ack_quorum(settings)
    states = await _ask_all(settings, [LogQuery(settings.cluster)] * len(settings.safekeepers))
    if (in_use := await _in_use(settings, states)) is not None:
        return Created(in_use, in_use=True)
    primary, slot_is_new = await _primary_with_slot(settings)
    if not slot_is_new:
        await refuse_slot_in_use(settings.dsn, settings.slot)
    log_uuid = next((s.log_uuid for s in states if s.log_uuid != NO_LOG), os.urandom(16))
    prepare = PrepareLog(settings.cluster, log_uuid)
    try:
        states = await _ask_all(settings, [prepare] * len(settings.safekeepers))
        configuration = _configuration(settings, states, primary, log_uuid, quorum)
    except Refused:
        if slot_is_new:  # no member knows this primary's log, so no later command drops the slot
            await _drop_slot(settings)
        raise
    configure = ConfigureLog(settings.cluster, configuration)
    await _ask_all(settings, [configure] * len(settings.safekeepers))
    return Created(configuration)


def _ack_quorum(settings: CreateSettings) -> int:
    members = len(settings.safekeepers)
    if len(set(settings.safekeepers)) != members:
        raise Refused("--safekeepers names an address twice: name each member once")
    quorum = majority(members) if settings.ack_quorum is None else settings.ack_quorum
    refuse_ack_quorum(quorum, members, is_single_allowed=settings.allow_single_ack)
    return quorum


async def _ask_all(settings: CreateSettings, questions: Sequence[Message]) -> list[LogState]:
    """Return every member's answer; raise Refused unless all answer, since `create` needs all."""
    try:
        answers = await asyncio.gather(
            *(
                ask(address, question, settings.timeout_s)
                for address, question in zip(settings.safekeepers, questions, strict=True)
            )
        )
    except Unreachable as error:
        raise Refused(f"{error}; `create` needs every member: start it, then repeat") from error
    states = []
    for address, answer in zip(settings.safekeepers, answers, strict=True):
        if isinstance(answer, Reject):
            raise Refused(f"safekeeper at {shown_address(address)}: {answer.text}")
        if not isinstance(answer, LogState):
            raise Refused(
                f"safekeeper at {shown_address(address)} answered with {type(answer).__name__}"
            )
        states.append(answer)
    ids = [state.acceptor_id for state in states]
    if len(set(ids)) != len(ids):
        raise Refused(f"two of the addresses are the same safekeeper: ids {sorted(ids)}")
    return states


async def _in_use(settings: CreateSettings, states: Sequence[LogState]) -> Configuration | None:
    """Return the configuration in use that --if-not-exists accepts, or None if none is in use.

    A log is in use once a proposer has been elected. From then on an empty member is a wiped one,
    and no member is initialised. Raise Refused if `create` cannot accept the log.
    """
    terms = [state.ballot.term for state in states]
    if not any(terms):
        return None
    configurations = [s.configuration for s in states if s.configuration is not None]
    wiped = [s.acceptor_id for s in states if s.configuration is None]
    if wiped:
        raise Refused(
            f"the log of cluster {settings.cluster!r} is in use (term {max(terms)}) and "
            f"safekeeper {wiped[0]} does not hold it: it was wiped and lost its promises. "
            f"`create` changed no log; run `walkeeper replace --member {wiped[0]} …`"
        )
    newest = max(configurations, key=lambda configuration: configuration.generation)
    await _refuse_other_primary(settings, newest)
    if settings.if_not_exists and len({c.log_uuid for c in configurations}) == 1:
        _refuse_other_shape(settings, newest, {state.acceptor_id for state in states})
        return newest
    raise Refused(
        f"the log of cluster {settings.cluster!r} exists and is in use (term {max(terms)}); "
        "`create` changed no log. Another --cluster makes a new log beside it"
    )


async def _refuse_other_primary(settings: CreateSettings, log: Configuration) -> None:
    """Raise Refused if the log belongs to another primary, or is of another kind.

    A script goes on with `proposer` and `attach` for the same --dsn. `create` does not wait for a
    primary that does not answer, because it may be starting at the same time.
    """
    _refuse_other_kind(settings, log)
    try:
        connection = await _connected(settings)
        try:
            primary = await identify(connection)
        finally:
            connection.close()
    except (Unavailable, Refused):
        return
    _refuse_other_system(log, primary)


def _refuse_other_shape(settings: CreateSettings, log: Configuration, ids: set[int]) -> None:
    """Raise Refused if the log has another ack quorum than the given one, or other members."""
    members = {member_id(member) for member in log.members}
    is_changing = log.target is not None  # then the new member may be listed as well as the old one
    if settings.ack_quorum not in (None, log.ack_quorum):
        raise Refused(
            f"the log of cluster {settings.cluster!r} exists with ack quorum {log.ack_quorum}, not "
            f"{settings.ack_quorum}: change that with `walkeeper members set-ack-quorum "
            f"{settings.ack_quorum}`, give --ack-quorum {log.ack_quorum}, or choose another "
            "--cluster"
        )
    if settings.ack_zones not in (0, log.ack_zones):
        raise Refused(
            f"the log of cluster {settings.cluster!r} exists, and {ack_rule(log.present)}: change "
            "that with `walkeeper members set-ack-quorum --ack-zones`, or choose another --cluster"
        )
    if ids != members and not is_changing:
        raise Refused(
            f"the log of cluster {settings.cluster!r} exists with the safekeepers "
            f"{', '.join(map(str, sorted(members)))}, and --safekeepers names "
            f"{', '.join(map(str, sorted(ids)))}: name its members, or choose another --cluster"
        )


def _refuse_other_kind(settings: CreateSettings, log: Configuration) -> None:
    if log.kind is not (LogKind.LOGICAL if settings.logical else LogKind.PHYSICAL):
        raise Refused(
            f"the log of cluster {settings.cluster!r} is {log.kind.name.lower()}, and a "
            "log's kind is fixed when it is made; choose another --cluster"
        )


def _refuse_other_system(log: Configuration, primary: PrimaryIdentity) -> None:
    if log.system_id != primary.system_id:
        raise Refused(
            f"the log belongs to the PostgreSQL cluster with system identifier {log.system_id}, "
            f"this primary has {primary.system_id}; check --dsn, --safekeepers and --cluster"
        )


async def _primary_with_slot(settings: CreateSettings) -> tuple[PrimaryIdentity, bool]:
    """Return the primary's identity, and True if the slot is new.

    The slot reserves WAL before the primary reports its position, so that the primary recycles
    none of it meanwhile. Raise Refused if the primary does not answer or does not fit.
    """
    try:
        connection = await _connected(settings)
        try:
            identity = await identify(connection)
            if identity.in_recovery:
                raise Refused("the server is in recovery; point --dsn at the primary")
            if settings.logical:
                ((encoding,),) = await connection.query("SHOW server_encoding")
                ((*_, database),) = await connection.query("IDENTIFY_SYSTEM")
                if flaw := flaw_of_encoding(database or "", encoding or ""):
                    raise Refused(flaw)
            is_new = await _make_slot(connection, settings, identity.server_version_num)
            return await identify(connection), is_new
        finally:
            connection.close()
    except Unavailable as error:
        raise Refused(str(error)) from error


async def _connected(settings: CreateSettings) -> ReplicationConnection:
    replication = "database" if settings.logical else "true"
    return await ReplicationConnection.open(
        settings.dsn, "walkeeper_create", replication=replication
    )


async def _drop_slot(settings: CreateSettings) -> None:
    """Drop the slot if the primary answers, and ignore a failure.

    The user needs the first error, which is the reason for the drop.
    """
    with contextlib.suppress(Unavailable, Refused):
        connection = await _connected(settings)
        try:
            await connection.query(f'DROP_REPLICATION_SLOT "{settings.slot}"')
        finally:
            connection.close()


async def _make_slot(
    connection: ReplicationConnection, settings: CreateSettings, version: int
) -> bool:
    """Make the slot and return True, or return False if it existed before."""
    reserve = "(RESERVE_WAL)" if version >= 150000 else "RESERVE_WAL"
    command = f'CREATE_REPLICATION_SLOT "{settings.slot}" PHYSICAL {reserve}'
    if settings.logical:
        command = create_slot_command(settings.slot, version)
    try:
        await connection.query(command)
    except SlotExists:
        return False
    except Refused as error:
        raise Refused(
            f"{error}; the role needs REPLICATION, and max_replication_slots a free slot"
        ) from error
    return True


def _configuration(
    settings: CreateSettings,
    states: Sequence[LogState],
    primary: PrimaryIdentity,
    log_uuid: bytes,
    quorum: int,
) -> Configuration:
    """Return the record that an unfinished earlier `create` has configured, or else a new one.

    Raise Refused if that record does not fit this primary or these options.
    """
    members = tuple(
        member_name(s.acceptor_id, s.incarnation)
        for s in sorted(states, key=lambda s: s.acceptor_id)
    )
    wanted = _set(settings, members, quorum)
    begun = next((s.configuration for s in states if s.configuration is not None), None)
    kind = LogKind.LOGICAL if settings.logical else LogKind.PHYSICAL
    creation_lsn = primary.flush_lsn.round_down(primary.segment_bytes)
    if settings.logical:
        creation_lsn = Lsn(primary.segment_bytes)  # a position in the log, not one of PostgreSQL's
    configuration = begun or Configuration(
        generation=1,
        log_uuid=log_uuid,
        system_id=primary.system_id,
        segment_bytes=primary.segment_bytes,
        server_version=primary.server_version,
        kind=kind,
        creation_lsn=creation_lsn,
        timeline=primary.timeline,
        members=members,
        ack_quorum=quorum,
        ack_zones=wanted.ack_zones,
        zones=wanted.zones,
    )
    _refuse_other_system(configuration, primary)
    _refuse_other_kind(settings, configuration)
    if configuration.present != wanted:
        raise Refused(
            f"the log of cluster {settings.cluster!r} was made with members "
            f"{', '.join(configuration.members)} and ack quorum {configuration.ack_quorum}"
            f"{zones_clause(configuration.present)}: name these, or choose another --cluster"
        )
    return configuration


def _set(settings: CreateSettings, members: Sequence[str], quorum: int) -> MemberSet:
    """Return the set of all members with their zones. Raise Refused if no log can have it."""
    strangers = set(settings.zones) - set(map(member_id, members))
    if strangers:
        raise Refused(
            f"--zones names safekeeper {min(strangers)}, which --safekeepers does not: add its "
            "address, or leave it out"
        )
    zones = {member: settings.zones.get(member_id(member), "") for member in members}
    wanted = member_set(zones, ack_quorum=quorum, ack_zones=settings.ack_zones)
    flaw = flaw_of_set(wanted)
    if flaw is not None:
        raise Refused(f"{flaw}: mend --zones or --ack-zones")
    refuse_zone_stop(wanted, is_allowed=settings.allow_zone_stop)
    return wanted
