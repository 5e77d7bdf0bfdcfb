"""WAL that a real server ends at every awkward place: what comes next fits behind it, byte by byte.

After Neon's test_crafted_wal_end. Sizes are computed so that a commit, or a switch, ends exactly
where a case says. Then primary and proposer are killed, both come back, and a new term has to start
exactly there. scenarios/crafted_wal_ends.txt shows the same for safekeepers that lose their power.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.segment_files import assert_same_wal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

PAGE = 8192
SEGMENT = 1 << 20
SWITCH_BYTES = 24
MESSAGE_BYTES = 1000
OVERHEAD_BYTES_MAX = 300
TRIES = 10  # a record of PostgreSQL's own may come in between
STARTS = re.compile(r"elected.*start=([0-9A-F]+/[0-9A-F]+)")
# The WAL writer flushes whole pages at once, and the rest of what nobody waits for much later.
HALF_RECORDS = {"wal_writer_delay": "4s", "wal_writer_flush_after": "0"}


class Writer:
    """Puts the end of the primary's WAL where it is wanted, with transactions of one message."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.primary = cluster, cluster.primary

    def end(self) -> int:
        return lsn_of(self.primary.sql("SELECT pg_current_wal_flush_lsn()"))

    def next(self) -> int:
        """Return the start of the next record: after the page header, where one is due."""
        return lsn_of(self.primary.sql("SELECT pg_current_wal_insert_lsn()"))

    def commit(self, size: int = MESSAGE_BYTES) -> int:
        """Commit one transaction with a message of that size to a quorum; return its end."""
        self.emit(size, is_transactional=True)
        return self.end()

    def emit(self, size: int, *, is_transactional: bool) -> None:
        message = f"{is_transactional}, 'crafted', repeat('x', {size})"
        self.primary.sql(f"SELECT pg_logical_emit_message({message})")

    def switch(self) -> int:
        """Switch the segment; return that record's end. The padding comes with the next one."""
        record_end = lsn_of(self.primary.sql("SELECT pg_switch_wal()"))
        end = self.end()
        assert end % SEGMENT == 0, f"{end:X}"
        self.wait_flushed_everywhere(end)  # it waits for nobody by itself
        at_page_end = record_end % PAGE == _headers_bytes(record_end // PAGE * PAGE, record_end)
        return record_end // PAGE * PAGE if at_page_end else record_end

    def wait_flushed_everywhere(self, end: int) -> None:
        def is_there() -> bool:
            lsns = self.cluster.flush_lsns().values()
            return min(lsn_of(lsn) for lsn in lsns) >= end

        wait_until(is_there)

    def commit_to(self, offset: int, *, modulo: int) -> int:
        """Commit until a record ends at `offset` of a page or of a segment; return that LSN."""
        for _ in range(TRIES):
            overhead, begin = self._overhead_bytes(), self.next()
            end = begin // modulo * modulo + offset
            while end - begin < overhead + MESSAGE_BYTES:
                end += modulo
            if self.commit(end - begin - overhead - _headers_bytes(begin, end)) == end:
                return end
        raise AssertionError(f"no commit ended at {offset:X} of {modulo:X}")

    def _overhead_bytes(self) -> int:
        """Return the bytes of a transaction beside its message."""
        for _ in range(TRIES):
            begin = self.next()
            self.commit()
            size = self.next() - begin - MESSAGE_BYTES
            if size < OVERHEAD_BYTES_MAX and begin // PAGE == self.next() // PAGE:
                return size
        raise AssertionError("no transaction fits into a page")


def _headers_bytes(begin: int, end: int) -> int:
    """Return the header bytes of the pages that start in [begin, end)."""
    starts = range(-(-begin // PAGE) * PAGE, end, PAGE)
    return sum(24 if lsn % SEGMENT else 40 for lsn in starts)


# The cases: each returns where the last whole record ends.


def in_a_page(writer: Writer) -> int:
    return writer.commit()


def at_a_switch(writer: Writer) -> int:
    writer.commit()
    return writer.switch()


def at_a_switch_that_ends_with_its_page(writer: Writer) -> int:
    writer.commit_to(PAGE - SWITCH_BYTES, modulo=PAGE)
    return writer.switch()


def at_a_page_end(writer: Writer) -> int:
    return writer.commit_to(0, modulo=PAGE)


def eight_bytes_before_a_page_end(writer: Writer) -> int:
    return writer.commit_to(PAGE - 8, modulo=PAGE)


def at_a_segment_end(writer: Writer) -> int:
    return writer.commit_to(0, modulo=SEGMENT)


def behind_a_record_over_a_segment_end(writer: Writer) -> int:
    begin = writer.commit_to(SEGMENT - 256, modulo=SEGMENT)
    end = writer.commit()
    assert end // SEGMENT > begin // SEGMENT, f"{begin:X} {end:X}"
    return end


def behind_a_small_record_after_that(writer: Writer) -> int:
    behind_a_record_over_a_segment_end(writer)
    return writer.commit(10)


def before_half_a_record(writer: Writer) -> int:
    """Flush its first pages to the safekeepers; the last one is lost with the server."""
    return _half_a_record(writer, writer.commit)


def before_half_a_record_over_a_segment_end(writer: Writer) -> int:
    return _half_a_record(writer, lambda: writer.commit_to(SEGMENT - 256, modulo=SEGMENT))


def _half_a_record(writer: Writer, whole: Callable[[], int]) -> int:
    """Write half a record; try again if a busy machine let the WAL writer come for the rest."""
    for _ in range(TRIES):
        begin = whole()
        writer.emit(3 * PAGE + 1000, is_transactional=False)
        flushed = writer.next() // PAGE * PAGE
        assert flushed > begin + PAGE, f"{begin:X} {flushed:X}"

        def is_flushed(flushed: int = flushed) -> bool:
            return writer.end() >= flushed

        wait_until(is_flushed)
        writer.wait_flushed_everywhere(writer.end())
        if writer.end() == flushed:
            return begin
    raise AssertionError(f"no half of a record stayed at {flushed:X}")


CASES = (
    in_a_page,
    at_a_switch,
    at_a_switch_that_ends_with_its_page,
    at_a_page_end,
    eight_bytes_before_a_page_end,
    at_a_segment_end,
    behind_a_record_over_a_segment_end,
    behind_a_small_record_after_that,
    before_half_a_record,
    before_half_a_record_over_a_segment_end,
)
# Each way in which WAL may end once: in a page, at its end, at a segment's, in half of a record.
IN_THE_GATE = (
    at_a_switch_that_ends_with_its_page,
    eight_bytes_before_a_page_end,
    behind_a_record_over_a_segment_end,
    before_half_a_record_over_a_segment_end,
    in_a_page,
)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """One cluster for all cases: each goes on where another one has ended."""
    small_segments = ["--wal-segsize=1"]
    with (
        PostgresServer.create(HALF_RECORDS, initdb_options=small_segments) as primary,
        Cluster.create(primary) as cluster,
    ):
        yield cluster


@pytest.mark.parametrize(
    "craft",
    [
        pytest.param(
            craft, id=craft.__name__, marks=[] if craft in IN_THE_GATE else pytest.mark.soak
        )
        for craft in CASES
    ],
)
def test_a_term_starts_where_whole_records_were_made_to_end(
    running: Cluster, craft: Callable[[Writer], int]
) -> None:
    primary = running.primary
    primary.freeze_background_writer()
    end = craft(Writer(running))
    running.proposer.kill()
    primary.kill()
    primary.start()
    running.proposer.start()
    primary.sql("SELECT pg_logical_emit_message(true, 'crafted', 'and on')")
    last = running.wait_all_equal()
    found = STARTS.search(running.proposer.output())
    assert found and lsn_of(found[1]) == end, f"{end:X} {running.proposer.output()}"
    for number in (1, 2, 3):
        wal = running.wal_dir(number)
        assert assert_same_wal(primary.data / "pg_wal", wal, lsn_of(last)) >= 1
