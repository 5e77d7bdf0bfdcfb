"""Maintenance of an Iceberg table, by pyiceberg: snapshots expire, and their files are removed.

    maintain_iceberg(table, Retention(3600), now_ms) -> Maintained

pyiceberg takes expired snapshots out of the table's metadata, and leaves their files. So the files
are removed here: data files, manifests and manifest lists that no other snapshot has. The commit
that expires snapshots has the names of their manifest lists in the property `walkeeper.expired`.
A stream that dies after it finds them there, and removes the rest. The table's own properties make
pyiceberg remove older metadata files, and merge manifests. pyiceberg cannot merge data files.

Contract: a snapshot expires if another one took its place before the retention, and no tag and no
branch names it. The files of all other snapshots stay.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from walkeeper_replay.lakes.table_maintenance import Maintained, Retention

AGE, GC = "history.expire.max-snapshot-age-ms", "gc.enabled"
EXPIRED = "walkeeper.expired"
KEPT_SMALL = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
}
SNAPSHOTS_MAX = 1000
"""The most snapshots that one commit expires, since it has the names of their manifest lists."""
SMALL_FILES, SMALL_BYTES = 500, 8 << 20


def maintain_iceberg(table: Any, retention: Retention, now_ms: int) -> Maintained:
    """Set the table's properties, expire snapshots, and remove the files that only they had."""
    own = table.properties
    if own.get(GC) == "false":
        return Maintained(remark=f"{GC} is false, so its files stay")
    wanted = {name: text for name, text in KEPT_SMALL.items() if name not in own}
    if retention.is_asked or AGE not in own:
        wanted[AGE] = str(retention.seconds * 1000)
    wanted = {name: text for name, text in wanted.items() if own.get(name) != text}
    if wanted:
        with table.transaction() as change:
            change.set_properties(wanted)
    removed = _remove_files(table)
    expired = expired_snapshots(table.metadata, now_ms - int(table.properties[AGE]))
    if expired:
        _expire(table, expired)
        removed += _remove_files(table)
    return Maintained(removed, expired=len(expired), remark=_remark(table))


def expired_snapshots(metadata: Any, before_ms: int) -> list[Any]:
    """Return snapshots in whose place another one was current before a time, the oldest first.

    Leave out a snapshot that a tag or a branch names.
    """
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    chain = _chain(metadata)
    found = [
        each
        for each, later in zip(chain[1:], chain, strict=False)
        if later.timestamp_ms < before_ms and each.snapshot_id not in named
    ]
    return found[::-1][:SNAPSHOTS_MAX]


def _chain(metadata: Any) -> list[Any]:
    """Return the current snapshot and those before it, the newest first."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    found, at = [], by_id.get(metadata.current_snapshot_id)
    while at is not None:
        found.append(at)
        at = by_id.get(at.parent_snapshot_id)
    return found


def _expire(table: Any, snapshots: list[Any]) -> None:
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    names = json.dumps([each.manifest_list for each in snapshots])
    with table.transaction() as change:
        change.set_properties({EXPIRED: names})
        ExpireSnapshots(change).by_ids([each.snapshot_id for each in snapshots]).commit()


def _remove_files(table: Any) -> int:
    """Remove what only expired snapshots had, and return the count of files."""
    from pyiceberg.manifest import read_manifest_list

    lists = json.loads(table.properties.get(EXPIRED, "[]"))
    if not lists:
        return 0
    io, gone = table.io, dict[str, Any]()
    for name in lists:
        with suppress(FileNotFoundError):  # The stream died while it removed them.
            for manifest in read_manifest_list(io.new_input(name)):
                gone[manifest.manifest_path] = manifest
    kept = _kept_manifests(table)
    gone = {path: each for path, each in gone.items() if path not in kept}
    files = set[str]()
    for manifest in gone.values():
        with suppress(FileNotFoundError):  # Its files went before it.
            files |= _data_files(manifest, io)
    if files:
        files = files.difference(*(_data_files(each, io) for each in kept.values()))
    # The names of later ones are in the earlier ones, so a death leaves none without a name.
    removed = [*sorted(files), *gone, *lists]
    for path in removed:
        with suppress(FileNotFoundError):
            io.delete(path)
    with table.transaction() as change:
        change.remove_properties(EXPIRED)
    return len(removed)


def _kept_manifests(table: Any) -> dict[str, Any]:
    """Return by path the manifests of the oldest snapshot, and of those off the current line.

    A later snapshot of the line has no file of an expired one that the oldest does not have.
    """
    line = _chain(table.metadata)
    on_line = {each.snapshot_id for each in line}
    others = [each for each in table.metadata.snapshots if each.snapshot_id not in on_line]
    return {
        manifest.manifest_path: manifest
        for each in [*line[-1:], *others]
        for manifest in each.manifests(table.io)
    }


def _data_files(manifest: Any, io: Any) -> set[str]:
    return {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}


def _remark(table: Any) -> str | None:
    current = table.current_snapshot()
    if current is None or current.summary is None:
        return None
    summary = current.summary.additional_properties
    count, size = int(summary.get("total-data-files", 0)), int(summary.get("total-files-size", 0))
    if count < SMALL_FILES or size >= count * SMALL_BYTES:
        return None
    name = ".".join(table.name())
    return (
        f"it has {count} data files of {size // count >> 10} kB on average, and pyiceberg cannot "
        f"merge them: run CALL system.rewrite_data_files('{name}') in Spark now and then"
    )
