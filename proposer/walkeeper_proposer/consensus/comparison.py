"""Are the primary's bytes and the log's the same? (docs/steps.md#check-of-the-primary) Pure.


Both sides arrive as streams at their own pace. The comparison keeps one digest for each page of
the side that is ahead, so it takes 16 bytes for 8 KiB of WAL. Equal bytes prove something only if
no clone has them by chance. After pg_switch_wal the last bytes are zeros on every clone. So the
range must hold a telling record: a commit, a checkpoint or a nonce (R22). These differ between
clones.
"""

from __future__ import annotations

import hashlib

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walformat import has_telling_record

DIGEST_BYTES = 16


class Different(Exception):
    """The first page that differs."""

    def __init__(self, lsn: Lsn) -> None:
        super().__init__(f"the primary's WAL differs from the log in the page at {lsn}")
        self.lsn = lsn


class _Side:
    """One stream, cut into pages; pages are digested as they fill."""

    def __init__(self, begin_lsn: Lsn) -> None:
        self.next_lsn = begin_lsn
        self._page = bytearray()

    def pages(self, begin_lsn: Lsn, wal: Buffer, end_lsn: Lsn) -> list[tuple[Lsn, bytes]]:
        assert begin_lsn == self.next_lsn, f"{begin_lsn=} {self.next_lsn=}"
        self.next_lsn = begin_lsn + len(wal)
        full: list[tuple[Lsn, bytes]] = []
        view, at = memoryview(wal), 0
        while at < len(view):
            page_lsn = (begin_lsn + at).round_down(WAL_PAGE_BYTES)
            take = min(len(view) - at, page_lsn + WAL_PAGE_BYTES - (begin_lsn + at))
            self._page += view[at : at + take]
            at += take
            here = begin_lsn + at
            if here == end_lsn or here % WAL_PAGE_BYTES == 0:
                full.append((page_lsn, bytes(self._page)))
                self._page.clear()
        return full


class Comparison:
    """[begin_lsn, end_lsn) on both sides. Feed each side in order; raises Different."""

    def __init__(self, begin_lsn: Lsn, end_lsn: Lsn) -> None:
        assert begin_lsn <= end_lsn, f"{begin_lsn=} {end_lsn=}"
        self.begin_lsn, self.end_lsn = begin_lsn, end_lsn
        self.is_telling = False  # a telling record was among the equal bytes
        self._primary, self._log = _Side(begin_lsn), _Side(begin_lsn)
        self._ahead: dict[Lsn, bytes] = {}

    @property
    def is_done(self) -> bool:
        return self._primary.next_lsn == self._log.next_lsn == self.end_lsn and not self._ahead

    @property
    def log_next_lsn(self) -> Lsn:
        """The LSN at which to go on reading the log."""
        return self._log.next_lsn

    @property
    def primary_next_lsn(self) -> Lsn:
        """The LSN at which the primary's stream goes on."""
        return self._primary.next_lsn

    def feed_primary(self, begin_lsn: Lsn, wal: Buffer) -> None:
        for page_lsn, page in self._primary.pages(begin_lsn, wal, self.end_lsn):
            self._match(page_lsn, page)

    def feed_log(self, begin_lsn: Lsn, wal: Buffer) -> None:
        for page_lsn, page in self._log.pages(begin_lsn, wal, self.end_lsn):
            if not self.is_telling:
                self.is_telling = has_telling_record(page_lsn, page)
            self._match(page_lsn, page)

    def _match(self, page_lsn: Lsn, page: bytes) -> None:
        digest = hashlib.blake2b(page, digest_size=DIGEST_BYTES).digest()
        other = self._ahead.pop(page_lsn, None)
        if other is None:
            self._ahead[page_lsn] = digest
        elif other != digest:
            raise Different(page_lsn)
