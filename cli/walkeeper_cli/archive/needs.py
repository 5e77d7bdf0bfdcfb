"""The WAL of an archive that the safekeepers of its log still need, and for which use. A shell.

* A slot promises its consumer all WAL from its restart_lsn on, and the archive keeps that promise.
* A connected standby or tool reads on from its position.
* A member that was down is fed from the end of its own WAL on.
* A member puts WAL again that it has not compared with the archive yet.

Only the members know these positions. So a member that does not answer is an error, never a guess.
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
    """Ask the safekeepers and return the WAL that they need of the archive.

    Raise Refused if a member is not among `safekeepers`, a member does not answer, or the archive
    is another system's.
    """
    document = asyncio.run(gather(safekeepers, archive.cluster, ANSWER_TIMEOUT_S))
    return needs(document, archive.system_id)


def needs(document: dict[str, Any], system_id: int) -> list[KeepFrom]:
    """Return the WAL that the members need, from the document of `status --json`."""
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
    # A member that is started again falls back to the end of its last whole record, and its donors
    # read on from there. So a segment's room is kept. restart_lsn is the end of the slowest
    # member's WAL, as far as this member knows.
    own = min(Lsn.parse(line[each]) for each in ("flush_lsn", "commit_lsn", "restart_lsn"))
    yield KeepFrom(f"{name}, which has WAL up to {own},", lsn=Lsn(max(0, own - segment_bytes)))
    if line["kind"] == "logical":
        yield _of_consumers(name, line["needed_lsn"])
        return  # slots and readers report the primary's LSNs, not positions of the log
    for slot in line["slots"]:
        if slot["restart_lsn"] is not None:
            given = f"slot {slot['slot_name']!r} of {name}"
            yield KeepFrom(given, lsn=Lsn.parse(slot["restart_lsn"]))
    for reader in line["standbys"]:
        position = min(Lsn.parse(reader["sent_lsn"]), _reported(reader))
        yield KeepFrom(f"{reader['application_name']!r}, connected to {name},", lsn=position)


def _of_consumers(name: str, needed_lsn: str | None) -> KeepFrom:
    """Return the WAL that consumers of a logical log need; raise Refused if it is not known yet.

    The safekeeper maps the consumers' LSNs to positions of the log every few seconds.
    """
    if needed_lsn is None:
        raise Refused(
            f"{name} does not know yet which WAL the consumers of its log need: try again in 10 s"
        )
    return KeepFrom(f"a consumer of {name}", lsn=Lsn.parse(needed_lsn))


def _reported(reader: dict[str, Any]) -> Lsn:
    """Return the position that a reader has reported, or else the position sent to it.

    A tool that has not reported yet shows 0/0, which is no position.
    """
    flush_lsn = Lsn.parse(reader["flush_lsn"])
    return flush_lsn if flush_lsn else Lsn.parse(reader["sent_lsn"])
