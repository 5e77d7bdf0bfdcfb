"""WAL of the disk for the archive, only if it is the WAL that was accepted. Blocking; a shell.

    SoundWal(driver, readable_lsn).read(begin_lsn, end_lsn)     all of it, or CorruptWal

A disk may lose bytes that it once had. An object with such bytes would get a receipt, and a
recovery from it would fail. So each record is checked by its CRC before an upload, and WAL that the
scrub found damaged is refused. Fresh WAL is not checked again. This process wrote it a short while
ago, so its bytes come from memory.
"""

from __future__ import annotations

from collections.abc import Callable

from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.record_steps import flaw_in
from walkeeper_safekeeper.storage.whole_records import last_whole_end

FRESH_BYTES = 256 << 20


class SoundWal:
    """The WAL of one log. WAL that was here at the start of this process is not fresh."""

    def __init__(self, driver: Driver, readable_lsn: Callable[[], Lsn]) -> None:
        self._driver, self._store, self._readable_lsn = driver, driver.store, readable_lsn
        self._opened_lsn = driver.acceptor.flush_lsn

    def whole_end(self, readable_lsn: Lsn) -> Lsn:
        """Return where committed whole records end."""
        return last_whole_end(self._store, readable_lsn)

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return all of [begin_lsn, end_lsn). Raise CorruptWal for a record that is not sound."""
        if self._driver.is_damaged(begin_lsn, end_lsn):
            raise CorruptWal(f"segment {self._store.name_of(begin_lsn)} is damaged on this disk")
        readable_lsn = self._readable_lsn()
        is_old = begin_lsn < self._opened_lsn or readable_lsn - begin_lsn > FRESH_BYTES
        if is_old:
            self._check(begin_lsn, end_lsn, readable_lsn)
        return self._store.read(begin_lsn, end_lsn)

    def _check(self, begin_lsn: Lsn, end_lsn: Lsn, readable_lsn: Lsn) -> None:
        """Raise CorruptWal for the first record that is not sound, also one across begin_lsn."""
        store, at_lsn = self._store, self._store.first_lsn
        if begin_lsn > at_lsn:
            at_lsn = store.record_end(begin_lsn).next_lsn
        whole_lsn = self.whole_end(readable_lsn)
        flaw = flaw_in(store, at_lsn, min(end_lsn, whole_lsn), whole_lsn)
        if flaw is not None:
            raise CorruptWal(f"{flaw}. The scrub repairs it from another copy, if there is one")
