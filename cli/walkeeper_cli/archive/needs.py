"""From which LSN on the safekeepers of a log still want WAL of its archive, and for whom. A shell.

A slot promises its consumer all WAL from its restart_lsn on, and with an archive that promise is
kept from there; a standby or a tool that is connected reads on from where it is; a member that was
down is fed from behind its own end; and what a member has not compared with the archive yet would
be put there again. All of it is only known by asking every member, so one that does not answer is
an error, never a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from walkeeper_archive.archive import Archive
from walkeeper_cli.archive.keep import KeepFrom
from walkeeper_cli.cluster.status import gather
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import member_id

ANSWER_TIMEOUT_S = 5.0
OTHERWISE = "start it, or leave out --safekeepers and let --keep alone decide"


def asked(safekeepers: Sequence[Address], archive: Archive) -> list[KeepFrom]:
    """Refused: a member was not asked or did not answer, or this is another system's archive."""
    document = asyncio.run(gather(safekeepers, archive.cluster, ANSWER_TIMEOUT_S))
    return needs(document, archive.system_id)


def needs(document: dict[str, Any], system_id: int) -> list[KeepFrom]:
    """`document`: of `status --json`."""
    cluster, lines = document["cluster"], document["safekeepers"]
    for line in lines:
        if line["id"] is None or line["flush_lsn"] is None:
            raise Refused(
                f"cannot know the WAL that safekeeper {line['address']} needs: {line['error']}; "
                + OTHERWISE
            )
    missing = sorted(
        {member_id(member) for member in cluster["members"]} - {line["id"] for line in lines}
    )
    if missing:
        raise Refused(
            f"safekeeper {missing[0]} of {cluster['name']!r} is not among --safekeepers: name "
            "every member"
        )
    if int(cluster["system_id"]) != system_id:
        raise Refused(
            f"the safekeepers hold the log of system {cluster['system_id']}, the archive is that "
            f"of {system_id}: choose with --system-id, or leave out --safekeepers"
        )
    return [need for line in lines for need in _of_one(line, cluster["segment_bytes"])]


def _of_one(line: dict[str, Any], segment_bytes: int) -> Iterator[KeepFrom]:
    name = f"safekeeper {line['id']}"
    if line["archived_lsn"] is not None:
        yield KeepFrom(f"{name}, which compares its WAL,", lsn=Lsn.parse(line["archived_lsn"]))
    # One that is started again falls back to the end of its last whole record, and its donors read
    # on from there: a segment's room. restart_lsn is what the slowest member has, as far as known.
    own = min(Lsn.parse(line[each]) for each in ("flush_lsn", "commit_lsn", "restart_lsn"))
    yield KeepFrom(f"{name}, which has WAL up to {own},", lsn=Lsn(max(0, own - segment_bytes)))
    if line["kind"] == "logical":
        yield _of_consumers(name, line["needed_lsn"])
        return  # the slots' and readers' own LSNs are the primary's, not positions of the log
    for slot in line["slots"]:
        if slot["restart_lsn"] is not None:
            given = f"slot {slot['slot_name']!r} of {name}"
            yield KeepFrom(given, lsn=Lsn.parse(slot["restart_lsn"]))
    for reader in line["standbys"]:
        position = min(Lsn.parse(reader["sent_lsn"]), _reported(reader))
        yield KeepFrom(f"{reader['application_name']!r}, connected to {name},", lsn=position)


def _of_consumers(name: str, needed_lsn: str | None) -> KeepFrom:
    """The safekeeper knows where their LSNs are in the log; it looks every few seconds."""
    if needed_lsn is None:
        raise Refused(
            f"{name} does not know yet which WAL the consumers of its log need: try again in 10 s"
        )
    return KeepFrom(f"a consumer of {name}", lsn=Lsn.parse(needed_lsn))


def _reported(reader: dict[str, Any]) -> Lsn:
    """A tool that has not said anything yet has reported 0/0, which is no position."""
    flush_lsn = Lsn.parse(reader["flush_lsn"])
    return flush_lsn if flush_lsn else Lsn.parse(reader["sent_lsn"])
