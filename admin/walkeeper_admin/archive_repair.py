"""`walkeeper archive repair`: put back files that an archive lost and the safekeepers still have.

    flawed(archive) -> files      damaged, half there, or missing between others
    repair(archive, flaw, fetch)  fetches the file again, and puts it in the place of the flawed one
    await repair_all(archive, …)  does both for each file; flawed and repair block

The safekeepers' WAL comes through `walkeeper restore`, so it is committed. A readable receipt
decides: bytes that differ from it are refused. So is WAL of another system. An object is removed
only when its replacement is in memory. Safekeepers may archive meanwhile, so a file that has become
whole by then stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from walkeeper_admin.restored_file import NotRestored, restored
from walkeeper_admin.status import gather
from walkeeper_archive.archive import Archive
from walkeeper_archive.archive_contents import Contents
from walkeeper_archive.archive_errors import ArchiveDamaged
from walkeeper_archive.layout import Kind, WalFile, file_named
from walkeeper_archive.receipt import sha256_of
from walkeeper_archive.verification import flaw_of, survey, verify
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_common.shell.tls.own_credentials import own_options

ANSWER_S = 5.0
NOT_THERE = 1  # see docs/reference/exit-codes.md
Fetch = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Flaw:
    """A file to put back, and the reason."""

    file: WalFile
    text: str


def flawed(archive: Archive, *, jobs: int = 4, read_all: bool = True) -> list[Flaw]:
    """Return the segments and histories that are damaged, half there, or missing between others."""
    contents = survey(archive)
    found = {
        problem.file: problem.text
        for problem in verify(archive, contents, jobs=jobs, read_all=read_all)
        if problem.file is not None
    }
    for one in contents.without_receipt:
        found.setdefault(one.file, f"{archive.shown(one.path)} has no receipt")
    for file in _missing(contents):
        found.setdefault(file, f"{file.name} is missing")
    wanted = (Kind.SEGMENT, Kind.HISTORY)
    return [Flaw(file, text) for file, text in sorted(found.items()) if file.kind in wanted]


def _missing(contents: Contents) -> list[WalFile]:
    """Return the segments between the first and the last of each timeline that are not there."""
    missing = []
    for timeline, part in contents.timelines.items():
        if not part.segments:
            continue
        size = contents.segment_bytes
        for number in range(min(part.segments) // size, max(part.segments) // size):
            begin_lsn = Lsn(number * size)
            if begin_lsn not in part.segments:
                file = file_named(segment_name(timeline, begin_lsn, size))
                assert file is not None, f"{timeline=} {begin_lsn=}"
                missing.append(file)
    return missing


def repair(archive: Archive, flaw: Flaw, fetch: Fetch, *, segment_bytes: int) -> bool:
    """Put the file back, and return True; return False if it is whole by now.

    Raise Refused, with the archive unchanged, if no safekeeper has it."""
    file = flaw.file
    wal = fetch(file.name)
    try:
        receipt = archive.receipt(file)
    except ArchiveDamaged:
        receipt = None
    if receipt is not None and receipt.wal_sha256 != sha256_of(wal):
        raise Refused(
            f"{file.name}: the safekeepers' WAL is not what the receipt says; the archive and the "
            "log have parted, and the archive is unchanged"
        )
    if file.kind is Kind.SEGMENT and (why := flaw_of(archive, file, wal, segment_bytes)):
        # A missing segment has no receipt to compare the WAL with.
        raise Refused(
            f"{file.name}: the safekeepers' WAL does not fit: {why}; the archive is unchanged"
        )
    if receipt is not None and _is_whole(archive, file):
        # An upload that was under way has ended. Perhaps no disk has this WAL any more.
        return False
    objects = [each for each in archive.objects(file.timeline) if each.file == file]
    for each in sorted(objects, key=lambda one: not one.is_receipt):  # a receipt first
        archive.delete(each)
    archive.put(file, wal)
    if not _is_whole(archive, file):  # A receipt came after the listing, and `put` believed it.
        raise Refused(f"{file.name}: another upload of it ended meanwhile; repeat the command")
    return True


def _is_whole(archive: Archive, file: WalFile) -> bool:
    """Return True if the object is there and is what its receipt says."""
    try:
        return archive.read(file) is not None
    except ArchiveDamaged:
        return False


def fetching(
    safekeepers: Sequence[Address], cluster: str, segment_bytes: int, timeline: int
) -> Fetch:
    """Return a function that blocks, fetches a file by `walkeeper restore`, and raises Refused."""
    joined = ",".join(map(shown_address, safekeepers))
    options = ["--safekeepers", joined, *own_options(), "--cluster", cluster, "--no-partial"]

    def fetch(name: str) -> bytes:
        try:
            return restored(name, options, timeline=timeline, segment_bytes=segment_bytes)
        except NotRestored as error:
            raise Refused(why_not_fetched(name, error.code, error.said)) from error

    return fetch


def why_not_fetched(name: str, code: int | None, said: str) -> str:
    """Return why `restore` did not bring the file, by its exit code and its last line."""
    last = in_one_line(said.strip().rpartition("walkeeper restore: ")[2])
    if code == NOT_THERE:
        remedy = "a base backup from after this segment does without it"
        return f"{name}: no safekeeper has it ({last or 'not there'}); {remedy}"
    return f"{name}: not fetched ({last}); repeat the command when a quorum answers"


def refuse_another_log(document: dict[str, Any], system_id: int) -> None:
    """Raise Refused if these safekeepers do not have this archive's log, or if none answers.

    `document` is that of `status --json`. A single safekeeper with the log is enough, since it
    serves committed WAL alone."""
    found = document["cluster"]["system_id"]
    if found is None:
        why = ", ".join(f"{each['address']} ({each['error']})" for each in document["safekeepers"])
        raise Refused(
            f"no safekeeper has the log {document['cluster']['name']!r}: {why}. Name in "
            "--safekeepers those that archive here, and start them; the archive is unchanged"
        )
    if int(found) != system_id:
        raise Refused(
            f"the safekeepers hold the log of system {found}, and the archive is that of "
            f"{system_id}: name in --safekeepers those that archive here; the archive is unchanged"
        )


async def repair_all(
    archive: Archive,
    safekeepers: Sequence[Address],
    say: Callable[[str], None],
    *,
    jobs: int,
    dry_run: bool,
) -> tuple[int, int]:
    """Repair every flaw; return how many were repaired, and how many were not."""
    segment_bytes = (await asyncio.to_thread(survey, archive)).segment_bytes
    refuse_another_log(await gather(safekeepers, archive.cluster, ANSWER_S), archive.system_id)
    repaired = left = 0
    for flaw in await asyncio.to_thread(flawed, archive, jobs=jobs):
        if dry_run:
            say(f"would repair {flaw.file.name}: {flaw.text}")
            left += 1
            continue
        try:
            timeline = flaw.file.timeline
            fetch = fetching(safekeepers, archive.cluster, segment_bytes, timeline)
            was_put = await asyncio.to_thread(
                repair, archive, flaw, fetch, segment_bytes=segment_bytes
            )
        except WalkeeperError as error:
            say(f"not repaired: {error}")
            left += 1
        else:
            repaired += was_put
            text = f"repaired {flaw.file.name}: {flaw.text}"
            say(text if was_put else f"{flaw.file.name} is whole by now: its upload has ended")
    return repaired, left
