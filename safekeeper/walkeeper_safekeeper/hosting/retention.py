"""How far back WAL is kept (docs/protocol.md R14), and the removal of all before it. Pure.

wanted_lsn        the oldest LSN that slots and connected readers need
kept_bytes        --wal-keep-size, none of it when the log is near --wal-size-max
copied_from       from where on a log that lacks older WAL copies it from other members (M6)
remove_unwanted   whole segments go that neither these, nor the members, nor the archive need
"""

from __future__ import annotations

from collections.abc import Iterable

from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.wal_store import WalStore

LOW_MARK = 0.8  # share of --wal-size-max from which --wal-keep-size does not count


def wanted_lsn(positions: Iterable[Lsn], *, first_lsn: Lsn, has_archive: bool) -> Lsn | None:
    """Return the oldest LSN that a reader needs on this disk, or None.

    With an archive, readers below `first_lsn`, the oldest WAL on this disk, are served from there.
    They retain no WAL here until they reach it."""
    if has_archive:
        positions = (lsn for lsn in positions if lsn >= first_lsn)
    return min(positions, default=None)


def kept_bytes(keep_bytes: int, *, used_bytes: int, size_max: int | None) -> int:
    """Return how much WAL to keep although no reader needs it."""
    if size_max is None or used_bytes < size_max * LOW_MARK:
        return keep_bytes
    return 0


def copied_from(
    slots: Iterable[Lsn], *, flush_lsn: Lsn, keep_bytes: int, size_max: int | None
) -> Lsn:
    """Return from where on slots and --wal-keep-size keep WAL on each member that has it.

    A newcomer gets that from the others (M6), but at most half of --wal-size-max. So retention
    does not remove again what was copied, as long as the log is not near that size."""
    bytes_max = flush_lsn if size_max is None else size_max // 2
    kept_lsn = min([*slots, Lsn(max(0, flush_lsn - keep_bytes))])
    return max(kept_lsn, Lsn(max(0, flush_lsn - bytes_max)))


def remove_unwanted(
    driver: Driver, horizon_lsn: Lsn, *, keep_bytes: int, archived_lsn: Lsn | None = None
) -> None:
    """Remove whole segments below the horizon and `keep_bytes` before the end (R14).

    The segment before that of the records at the durable commit_lsn and restart_lsn stays. With
    an archive, archived_lsn stands for restart_lsn: laggards are fed from there.
    """
    durable, store = driver.acceptor.durable, driver.store
    if durable.commit_lsn <= store.first_lsn:
        return
    kept_lsn = Lsn(max(0, driver.acceptor.flush_lsn - Lsn(keep_bytes)))
    members_lsn = durable.restart_lsn if archived_lsn is None else archived_lsn
    limit_lsn = min(horizon_lsn, durable.commit_lsn, members_lsn, kept_lsn)
    if limit_lsn.round_down(store.segment_bytes) <= store.first_lsn:
        return

    def remove_from(store: WalStore) -> None:
        # Every member has the WAL below restart_lsn. But a restarted member falls back to a
        # record's end, and has to be fed from there (R9). And a primary is
        # compared with more than one record.
        record = store.record_end(min(durable.commit_lsn, members_lsn))
        if record.start_lsn is not None:  # else: no record starts in the log yet
            earlier_lsn = Lsn(max(0, record.start_lsn - store.segment_bytes))
            store.remove_below(min(limit_lsn, earlier_lsn))

    driver.remove(remove_from)
