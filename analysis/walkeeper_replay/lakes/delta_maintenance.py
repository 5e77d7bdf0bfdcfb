"""Maintenance of a Delta table, by delta-rs: small files are merged, replaced files are removed.

    maintain_delta(api, url, Retention(86400), commit_of, merge_bytes=32 << 20) -> Maintained

The table's properties delta.deletedFileRetentionDuration and delta.logRetentionDuration have the
retention, so that VACUUM of other engines keeps as much. delta-rs writes a checkpoint after each
100 commits, and removes older entries of the log then. A checkpoint forgets files that were
replaced before the retention, so VACUUM LITE would leave them for ever. A full VACUUM finds them,
and the files of commits that failed. It would also remove other files below the table's URL, such
as those of a table in a folder there. So it runs only if it would remove files of the table alone.

Contract: a merge is a commit that changes no data (OPTIMIZE). A file stays until it was replaced
for as long as the retention. Each commit has the properties that `commit_of` makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from walkeeper_replay.lakes.table_maintenance import Maintained, Retention, merge_target

FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_OWN = re.compile(r"part-[^/]+\.parquet")


def maintain_delta(
    api: Any, url: str, retention: Retention, commit_of: Callable[[Any], Any], merge_bytes: int
) -> Maintained:
    """Set the retention, merge small files, and remove those that were replaced long ago.

    `commit_of` returns the properties of a commit for a table.
    """
    try:
        table = api.DeltaTable(url)
    except api.exceptions.TableNotFoundError:
        return Maintained()
    if wanted := _unset(table.metadata().configuration, retention):
        table.alter.set_table_properties(wanted, commit_properties=commit_of(table))
        table = api.DeltaTable(url)
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    merged = made = 0
    if (target := merge_target(sizes, merge_bytes)) is not None:
        found = table.optimize.compact(
            target_size=target, max_concurrent_tasks=1, commit_properties=commit_of(table)
        )
        merged, made = found["numFilesRemoved"], found["numFilesAdded"]
    removed, remark = _vacuumed(table, url, commit_of)
    return Maintained(removed, merged, made, remark=remark)


def _unset(own: dict[str, str], retention: Retention) -> dict[str, str]:
    """Return the properties that the table lacks. A default changes none that is there."""
    if not retention.is_asked and (FILES in own or LOG in own):
        return {}
    wanted = dict.fromkeys((FILES, LOG), f"interval {retention.seconds} seconds")
    return {name: text for name, text in wanted.items() if own.get(name) != text}


def _vacuumed(table: Any, url: str, commit_of: Callable[[Any], Any]) -> tuple[int, str | None]:
    """Remove files, and return their count; and a remark if only a part of them could be."""
    found = table.vacuum(dry_run=True, full=True)
    others = sorted(path for path in found if not _OWN.fullmatch(path))
    if found:
        found = table.vacuum(dry_run=False, full=not others, commit_properties=commit_of(table))
    if not others:
        return len(found), None
    return len(found), (
        f"{url}/{others[0]} is no file of this table: so files of failed commits stay, and perhaps "
        "replaced ones; move it away, or run VACUUM elsewhere if it may go"
    )
