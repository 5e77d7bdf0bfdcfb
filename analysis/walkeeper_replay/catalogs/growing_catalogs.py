"""Catalogs through time of a log that grows: each window reads its own WAL alone.

    catalogs = GrowingCatalogs(); catalogs.advance(plan, window, base) -> CatalogHistory

Contract: the result is that of CatalogHistory.read over all WAL up to the window's end. Only times
of commits that `xids` was made to forget are absent. A catalog that a window rewrites (VACUUM
FULL) is read again from the beginning of the WAL, which must still be there. Can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.bulk_loads import BulkLoads
from walkeeper_replay.redo.decoded_window import DecodedWindow
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.redo.wal_pass import Consumer
from walkeeper_replay.tuples.xids import Xids
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.wal_errors import HistoryError


@dataclass(slots=True)
class GrowingCatalogs:
    """See the module."""

    store: PageStore | None = None
    xids: Xids | None = None
    loads: BulkLoads | None = None
    lc_monetary: str | None = None
    begin_lsn: int = 0
    before: CatalogHistory | None = None
    """The catalogs of the last window, if this process read it."""
    is_quiet: bool = False
    """True if the last window changed no catalog: all that was read of them before still holds."""

    def __getstate__(self) -> dict[str, Any]:
        names = (each.name for each in fields(self))
        return {name: getattr(self, name) for name in names if name not in ("before", "is_quiet")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.before, self.is_quiet = None, False

    def advance(
        self, plan: Plan, window: DecodedWindow, base: BaseDirectory | None
    ) -> CatalogHistory:
        """Return the catalogs at the window's end; `plan` is all WAL that is there."""
        files = window.files
        if self.store is None or self.xids is None or self.loads is None:
            self.begin_lsn = window.plan.segments[0].begin_lsn
            until = window.end_lsn
            return self._begun(CatalogHistory.read(files, window.plan, base=base, until=until))
        consumers: list[Consumer] = [self.xids.add, self.store.add, self.loads.add]
        passed = window.pass_over(consumers)
        assert self.store.major is not None, "the first window had a record"
        history = CatalogHistory(self.store, self.xids, self.store.major, passed)
        before, self.before = self.before, history
        self.is_quiet = before is not None and history.is_like(before)
        if before is not None and self.is_quiet:
            history.take_names(before)
        if self.is_quiet or not history.rewritten() - set(self.store.relations):
            history.loads = self.loads
            history.lc_monetary = self.lc_monetary
            return history
        if plan.segments[0].begin_lsn > self.begin_lsn:
            raise HistoryError(
                f"{files.shown('')}: VACUUM FULL rewrote a catalog before {Lsn(passed.end_lsn)}: "
                f"this needs the WAL from {Lsn(self.begin_lsn)} on again, which begins at "
                f"{Lsn(plan.segments[0].begin_lsn)}; give an archive with it, or begin anew with "
                "a later base backup"
            )
        return self._begun(CatalogHistory.read(files, plan, base=base, until=passed.end_lsn))

    def _begun(self, history: CatalogHistory) -> CatalogHistory:
        self.store, self.xids, self.loads = history.store, history.xids, history.loads
        self.lc_monetary = history.lc_monetary
        self.before, self.is_quiet = history, False
        return history
