"""Where the WAL that a base backup needs begins, by its backup_label."""

from __future__ import annotations

import re

from walkeeper_common.lsn import Lsn

_START = re.compile(r"^START WAL LOCATION: ([0-9A-F]{1,8}/[0-9A-F]{1,8}) \(file ", re.MULTILINE)


def start_in_label(text: str) -> Lsn | None:
    """Return the LSN, or None if no whole line of the label has it."""
    found = _START.search(text)
    return None if found is None else Lsn.parse(found[1])
