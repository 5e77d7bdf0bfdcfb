"""A damaged segment is rewritten from its copy in the archive."""

from __future__ import annotations

import asyncio

from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.worker_thread import WorkerThread, call
from walkeeper_safekeeper.archiving.offload import Offload
from walkeeper_safekeeper.storage.wal_store import WalStore


async def repair_segment(
    store: WalStore, offload: Offload, writer: WorkerThread, begin_lsn: Lsn
) -> bool:
    """Rewrite a damaged segment from the archive; return False if it is not there.

    The writer's thread does it, which also removes segments. Appends do not reach so far below
    the end. After a crash in the middle the next scrub finds the damage again."""
    end_lsn = Lsn(begin_lsn + store.segment_bytes)
    if not begin_lsn >= store.first_lsn or offload.archived_lsn < end_lsn:
        return False
    file, name = offload.file_of(begin_lsn), store.name_of(begin_lsn)
    wal = await asyncio.to_thread(offload.archive.read, file) if file.name == name else None
    if wal is None or len(wal) != store.segment_bytes:
        return False

    def rewrite() -> None:
        if begin_lsn >= store.first_lsn:
            store.disk.write_at(name, 0, [wal])
            store.disk.sync_data(name)

    await call(writer, rewrite)
    return True
