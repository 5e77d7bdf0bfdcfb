"""The slots of one log and their file: an answered change is durable.

    await create(…) / drop(…)     return when the change is on disk
    await save()                  makes memory durable; callers at the same time share one write

`write_file` is the port. It replaces the slots file atomically and returns when that is durable
(written, fsynced, renamed, directory fsynced). Writes never overlap. If the connection that asked
for a write is cancelled, the write goes on, and the next one waits for it.

If a write fails, `create` takes the slot back. A `drop` stays. The slot may come back with a
restart, and then keeps too much WAL, which is the safe side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.shared_slots import SharedSlots
from walkeeper_safekeeper.replication.physical_slots import Slot, Slots


class DurableSlots:
    """The slots of one log."""

    def __init__(
        self,
        saved: bytes | None,
        write_file: Callable[[bytes], Awaitable[None]],
        new_id: Callable[[], bytes] | None = None,
    ) -> None:
        self.slots = Slots(saved, new_id=new_id)
        self._write_file = write_file
        # A log without a slots file has no slots, so an image without slots needs no write either.
        self._saved = Slots(None).image().data if saved is None else saved
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()

    async def create(
        self, name: str, *, temporary: bool, restart_lsn: Lsn | None, pid: int
    ) -> Slot:
        """Create a slot and save it durably; a temporary slot needs no write."""
        slot = self.slots.create(name, temporary=temporary, restart_lsn=restart_lsn, pid=pid)
        try:
            await self.save()
        except Exception:
            self.slots.forget(slot)
            raise
        return slot

    async def drop(
        self, name: str, *, pid: int, wait: bool, on_dropped: Callable[[], None] = lambda: None
    ) -> None:
        """Drop a slot durably. With `wait`, wait first while another connection uses the slot.

        Call `on_dropped` when the slot is gone from memory, before anything else can see that."""
        while wait and self.slots.get(name).active_pid not in (None, pid):
            self._released.clear()
            await self._released.wait()
        self.slots.drop(name, pid=pid)
        on_dropped()
        await self.save()

    def release(self, name: str, *, pid: int) -> None:
        """Free the slot: the connection does not stream from it any more."""
        self.slots.release(name, pid=pid)
        self._released.set()

    def release_all(self, *, pid: int) -> None:
        """Free the slots of a connection that has ended."""
        self.slots.release_all(pid=pid)
        self._released.set()

    async def share(self, others: SharedSlots) -> SharedSlots:
        """Take over the slots of other members; return those of this one.

        Slots that came or went are durable then. Their moves are saved with the next ones."""
        before = self.slots.shared(others.cluster).names
        self.slots.follow_shared(others)
        self._released.set()  # a waiting drop looks again
        shared = self.slots.shared(others.cluster)
        if shared.names != before:
            await self.save()
        return shared

    async def save(self) -> None:
        """Return when everything that was in memory at the call is durable."""
        write = asyncio.create_task(self._save(), name="save replication slots")
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)

    async def _save(self) -> None:
        async with self._writing:
            image = self.slots.image()
            if image.data != self._saved:
                await self._write_file(image.data)
                self._saved = image.data
            self.slots.on_saved(image)

    async def close(self) -> None:
        """Save changes in memory and wait for every write."""
        await self.save()
        await asyncio.gather(*self._writes)
