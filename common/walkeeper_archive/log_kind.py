"""The kind of the log in an archive. All files have WAL's names, so their bytes decide. Blocks.

A log's kind is fixed when it is made (docs/logical.md), so any one file says it for all.
"""

from __future__ import annotations

from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import Kind
from walkeeper_common.entries import is_of_entries


def holds_entries(archive: Archive) -> bool:
    """Return True if the first file that can be read is a logical log's; read that file.

    Return False for an archive without files: there is no file to mistake.
    """
    for found in archive.objects():
        if found.is_receipt and found.file.kind is not Kind.HISTORY:
            data = archive.read(found.file)
            if data is not None:  # else pruned meanwhile
                return is_of_entries(data)
    return False
