"""The troubles of a member by their code: the words for a list of members, and the remedy. Pure.

The codes are those of `trouble` in `status --json`.
"""

from __future__ import annotations

LOST_LOG = ("no_log", "prepared")
TROUBLES = {
    "unreachable": ("does not answer", "start it, or repair its host or network"),
    "failed": (
        "its disk failed",
        "repair or replace the disk and restart it; if its WAL is lost, run `walkeeper replace`",
    ),
    "refusing": (
        "it refuses WAL for now",
        "free space on its disk, or raise --wal-size-max; it goes on by itself",
    ),
    "no_log": (
        "it does not have the log",
        "check --cluster; if its disk was lost or wiped, run `walkeeper replace`",
    ),
    "prepared": (
        "its log was prepared and never began",
        "repeat the `walkeeper create` or `walkeeper replace` that was interrupted",
    ),
    "replaced": (
        "it was replaced",
        "once `walkeeper status` shows the members well, stop it and remove this log's directory",
    ),
    "refused": ("it refuses", "see its error"),
    "wrong_log": (
        "it serves another log of this name",
        "start the right safekeeper at this address, or mend --safekeepers",
    ),
    "damaged": (
        "WAL on its disk is damaged",
        "it repairs the segment by itself from a good copy: bring the archive back, or start it "
        "with --repair-from; if its disk is bad, `walkeeper replace` it with another disk",
    ),
}
# In place of those of `unreachable`, if the host accepts connections.
HANGS = (
    "accepts connections and does not answer",
    "look at its log and its disk: a sync may hang; restart it if the disk is well",
)
# In place of that of `damaged`, if several members are: a replacement would end a good copy.
DAMAGED_TOO = (
    "replace none: another member is damaged as well, so keep every directory. Each repairs its "
    "segment by itself from a good copy: see docs/runbooks.md#damaged"
)
