"""A disk in memory that keeps only what it promised: the `Disk` port for tests and the simulator.

Until a file is synced, a power cut keeps any subset of its dirty 512-byte sectors. Each is then in
any of the versions it had since the last sync. Until the directory is synced, a power cut keeps any
subset of the creations, renames and unlinks. A sync that fails forgets that the sectors were dirty,
as Linux does. They read as written and never reach the disk unless they are written again.

    disk.operations_left = k       raises PowerCut instead of the operation after the k-th
    disk = disk.crash()            the disk as a power cut leaves it, then
    disk = disk.crash(garbles=True)  the same, with wrong bits in some of what was not synced
    disk.capacity_bytes = n        allocate raises NoSpace beyond it
    disk.failing_syncs.add(name)   the next sync_data of that file fails

Deterministic: everything comes from the Random that is passed in. Killing only the process means
to go on with the same object. Use `PowerCut` nowhere else: it is not an Exception of ours, so
nothing catches it by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import NoSpace, StorageError
from walkeeper_safekeeper.storage.disk_port import HALF_MADE

SECTOR = 512


class PowerCut(BaseException):
    """The machine is off: no code runs after this."""


class _File:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.dirty: dict[int, list[bytes]] = {}  # sector -> its versions since the last sync

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self.data += bytes(end - len(self.data))
        self.data[offset:end] = data
        for sector in range(offset // SECTOR, -(-end // SECTOR)):
            version = bytes(self.data[sector * SECTOR : (sector + 1) * SECTOR])
            self.dirty.setdefault(sector, []).append(version)

    def sync(self) -> None:
        if len(self.durable) < len(self.data):
            self.durable += bytes(len(self.data) - len(self.durable))
        for sector, versions in self.dirty.items():
            self._keep(sector, versions[-1])
        self.dirty.clear()

    def crash(self, random: Random, spared: Callable[[int], int] | None) -> _File:
        """Return the file as a power cut leaves it.

        `spared` gives the bits that stay right, by offset, or is None if all do.
        """
        survivor = _File()
        survivor.durable = bytearray(self.durable)
        keep = random.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for sector in sorted(self.dirty):
            if random.random() < keep:
                version = random.choice(self.dirty[sector])
                if spared is not None and random.random() < 0.3:
                    version = self._garbled(sector, version, random, spared)
                survivor._keep(sector, version)
        survivor.data = bytearray(survivor.durable)
        return survivor

    def _garbled(
        self, sector: int, version: bytes, random: Random, spared: Callable[[int], int]
    ) -> bytes:
        """Make one bit wrong in a byte under way; bytes synced in that sector are safe."""
        synced = self.durable[sector * SECTOR : sector * SECTOR + len(version)]
        synced += bytes(len(version) - len(synced))
        under_way = [i for i, byte in enumerate(version) if byte != synced[i]]
        if not under_way:
            return version
        garbled, at = bytearray(version), random.choice(under_way)
        garbled[at] ^= (1 << random.randrange(8)) & ~spared(sector * SECTOR + at)
        return bytes(garbled)

    def first_under_way(self, sector: int) -> int | None:
        """Return where some version since the last sync differs from the synced bytes."""
        begin = sector * SECTOR
        synced = self.durable[begin : begin + SECTOR].ljust(SECTOR, b"\0")
        differing = (
            next((i for i, byte in enumerate(version) if byte != synced[i]), None)
            for version in self.dirty[sector]
        )
        return min((begin + i for i in differing if i is not None), default=None)

    def _keep(self, sector: int, version: bytes) -> None:
        end = sector * SECTOR + len(version)
        if len(self.durable) < end:
            self.durable += bytes(end - len(self.durable))
        self.durable[sector * SECTOR : end] = version


class FaultyDisk:
    """One directory."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._changes: list[tuple[str | None, str | None, _File | None]] = []  # gone, new, file
        self.operations = 0
        self.operations_left: int | None = None
        self.capacity_bytes: int | None = None
        self.failing_syncs: set[str] = set()
        self.lost_changes = 0  # names that the last power cut took back

    def under_way(self) -> dict[tuple[str, int], int]:
        """Return the sectors that a power cut may leave in another state than they were synced in.

        The key is (name, sector), the value the offset of the file from which on. A sector written
        with its old bytes is not among them.
        """
        found = {}
        for name, file in self._names.items():
            for sector in file.dirty:
                first = file.first_under_way(sector)
                if first is not None:
                    found[name, sector] = first
        return found

    def crash(
        self, *, garbles: bool = False, spared: Callable[[str, int], int] = lambda name, offset: 0
    ) -> FaultyDisk:
        """Cut the power, and return the disk after it. The old object must not be used any more.

        `spared(name, offset)`: the bits of that byte that stay right, whatever is garbled.
        """
        kept = dict(self._durable_names)
        keep = self._random.choice([0.0, 0.5, 1.0])
        lost_changes = 0
        for gone, new, file in self._changes:
            if self._random.random() >= keep:
                lost_changes += 1
            else:
                if gone is not None:
                    kept.pop(gone, None)
                if new is not None and file is not None:
                    kept[new] = file
        survivor = FaultyDisk(self._random)
        survivor.capacity_bytes, survivor.lost_changes = self.capacity_bytes, lost_changes
        survivor._names = {
            name: kept[name].crash(self._random, partial(spared, name) if garbles else None)
            for name in sorted(kept)
        }
        survivor._durable_names = dict(survivor._names)
        return survivor

    def _operation(self) -> None:
        if self.operations_left is not None:
            if self.operations_left == 0:
                raise PowerCut(f"after {self.operations} operations")
            self.operations_left -= 1
        self.operations += 1

    def _file(self, name: str) -> _File:
        try:
            return self._names[name]
        except KeyError as error:
            raise StorageError(f"{name}: No such file or directory") from error

    def names(self) -> list[str]:
        return sorted(self._names)

    def size(self, name: str) -> int:
        return len(self._file(name).data)

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        data = bytes(self._file(name).data[offset : offset + size])
        if len(data) < size:
            raise StorageError(f"reading {name}: it ends {size - len(data)} bytes short")
        return data

    def read_cached(self, name: str, offset: int, size: int) -> Buffer | None:
        """Return None: it has no page cache, so that each read takes its worker's time."""
        return None

    def write_at(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        self._operation()
        self._file(name).write(offset, b"".join(buffers))

    def writer(self, name: str) -> _Writer:
        self._file(name)
        return _Writer(self, name)

    def sync_data(self, name: str) -> None:
        self._operation()
        file = self._file(name)
        if name in self.failing_syncs:
            self.failing_syncs.discard(name)
            file.dirty.clear()
            raise StorageError(f"syncing {name}: Input/output error")
        file.sync()

    def sync_directory(self) -> None:
        self._operation()
        self._durable_names = dict(self._names)
        self._changes.clear()

    def allocate(self, name: str, size: int) -> None:
        self._operation()
        used = sum(len(file.data) for file in self._names.values())
        if self.capacity_bytes is not None and used + size > self.capacity_bytes:
            raise NoSpace(f"no space for {size} bytes of {name}")
        self._create(name, bytes(size))
        self.sync_data(name)

    def drop_cached(self, name: str) -> None:
        """Drop what is synced; the rest stays, as with any hint of this kind."""

    def _create(self, name: str, data: bytes) -> None:
        file = _File()
        self._names[name] = file
        self._changes.append((None, name, file))
        file.write(0, data)

    def rename(self, old: str, new: str) -> None:
        self._operation()
        file = self._file(old)
        del self._names[old]
        self._names[new] = file
        self._changes.append((old, new, file))

    def unlink(self, name: str) -> None:
        self._operation()
        self._file(name)
        del self._names[name]
        self._changes.append((name, None, None))

    def replace(self, name: str, data: bytes) -> None:
        self._operation()
        self._create(name + HALF_MADE, data)
        self.sync_data(name + HALF_MADE)
        self.rename(name + HALF_MADE, name)
        self.sync_directory()

    def damage(self, name: str, offset: int, data: bytes) -> None:
        """Change durable bytes without anybody's notice: bit rot."""
        file = self._file(name)
        file.data[offset : offset + len(data)] = data
        file.durable[offset : offset + len(data)] = data


class _Writer:
    """The writer of one file."""

    descriptor = -1

    def __init__(self, disk: FaultyDisk, name: str) -> None:
        self._disk, self._name, self._is_closed = disk, name, False

    def write(self, data: Buffer, offset: int) -> int:
        assert not self._is_closed, self._name
        self._disk.write_at(self._name, offset, [data])
        return len(data)

    def sync(self) -> None:
        assert not self._is_closed, self._name
        self._disk.sync_data(self._name)

    def observe(self, write_s: float, sync_s: float) -> None:
        assert write_s >= 0 and sync_s >= 0, f"{write_s=} {sync_s=}"

    def failure(self, error: OSError) -> StorageError:
        raise AssertionError(f"{self._name}: {error!r}")

    def cut_short(self, offset: int, written: int, size: int) -> StorageError:
        raise AssertionError(f"{self._name}: {written} of {size} bytes at {offset}")

    def close(self) -> None:
        assert not self._is_closed, self._name
        self._is_closed = True
