"""The differences between PostgreSQL's WAL formats, by the magic of a WAL page. Pure.

The structure (pages, record headers, block references) is the same from 13 to 18. The
numbering of a page image's flags differs (13 and 14 against 15 and later). Some names of records
and some contents differ, too. WAL of an unknown magic is refused by name, since another version's
rules would misread it without an error. Sources: xlog_internal.h, xlogrecord.h, rmgrlist.h and
rmgrdesc/*.c of each version. The numbers do not change within a major version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

RMGR_NAMES = (
    "XLOG", "Transaction", "Storage", "CLOG", "Database", "Tablespace", "MultiXact", "RelMap",
    "Standby", "Heap2", "Heap", "Btree", "Hash", "Gin", "Gist", "Sequence", "SPGist", "BRIN",
    "CommitTs", "ReplicationOrigin", "Generic", "LogicalMessage",
)  # fmt: skip
RMGR_IDS = {name: number for number, name in enumerate(RMGR_NAMES)}
RMGR_CUSTOM_MIN = 128  # extensions' own, since 15
MAJORS = {0xD106: 13, 0xD10D: 14, 0xD110: 15, 0xD113: 16, 0xD116: 17, 0xD118: 18}
SUPPORTED = ", ".join(f"{magic:04X} ({major})" for magic, major in MAJORS.items())

# High nibble of info → name, per resource manager, as rm_identify() returns it in 15.
_NAMES: dict[str, dict[int, str]] = {
    "XLOG": {
        0x00: "CHECKPOINT_SHUTDOWN", 0x10: "CHECKPOINT_ONLINE", 0x20: "NOOP", 0x30: "NEXTOID",
        0x40: "SWITCH", 0x50: "BACKUP_END", 0x60: "PARAMETER_CHANGE", 0x70: "RESTORE_POINT",
        0x80: "FPW_CHANGE", 0x90: "END_OF_RECOVERY", 0xA0: "FPI_FOR_HINT", 0xB0: "FPI",
        0xD0: "OVERWRITE_CONTRECORD",
    },
    # Under the mask 0x70, since 0x80 means that the record has more flags.
    "Transaction": {
        0x00: "COMMIT", 0x10: "PREPARE", 0x20: "ABORT", 0x30: "COMMIT_PREPARED",
        0x40: "ABORT_PREPARED", 0x50: "ASSIGNMENT", 0x60: "INVALIDATION",
    },
    "Storage": {0x10: "CREATE", 0x20: "TRUNCATE"},
    "CLOG": {0x00: "ZEROPAGE", 0x10: "TRUNCATE"},
    "Database": {0x00: "CREATE_FILE_COPY", 0x10: "CREATE_WAL_LOG", 0x20: "DROP"},
    "Tablespace": {0x00: "CREATE", 0x10: "DROP"},
    "MultiXact": {
        0x00: "ZERO_OFF_PAGE", 0x10: "ZERO_MEM_PAGE", 0x20: "CREATE_ID", 0x30: "TRUNCATE_ID",
    },
    "RelMap": {0x00: "UPDATE"},
    "Standby": {0x00: "LOCK", 0x10: "RUNNING_XACTS", 0x20: "INVALIDATIONS"},
    "Heap2": {
        0x00: "REWRITE", 0x10: "PRUNE", 0x20: "VACUUM", 0x30: "FREEZE_PAGE", 0x40: "VISIBLE",
        0x50: "MULTI_INSERT", 0xD0: "MULTI_INSERT+INIT", 0x60: "LOCK_UPDATED", 0x70: "NEW_CID",
    },
    "Heap": {
        0x00: "INSERT", 0x80: "INSERT+INIT", 0x10: "DELETE", 0x20: "UPDATE", 0xA0: "UPDATE+INIT",
        0x30: "TRUNCATE", 0x40: "HOT_UPDATE", 0xC0: "HOT_UPDATE+INIT", 0x50: "HEAP_CONFIRM",
        0x60: "LOCK", 0x70: "INPLACE",
    },
    "Btree": {
        0x00: "INSERT_LEAF", 0x10: "INSERT_UPPER", 0x20: "INSERT_META", 0x30: "SPLIT_L",
        0x40: "SPLIT_R", 0x50: "INSERT_POST", 0x60: "DEDUP", 0x70: "DELETE", 0x80: "UNLINK_PAGE",
        0x90: "UNLINK_PAGE_META", 0xA0: "NEWROOT", 0xB0: "MARK_PAGE_HALFDEAD", 0xC0: "VACUUM",
        0xD0: "REUSE_PAGE", 0xE0: "META_CLEANUP",
    },
    "Hash": {
        0x00: "INIT_META_PAGE", 0x10: "INIT_BITMAP_PAGE", 0x20: "INSERT", 0x30: "ADD_OVFL_PAGE",
        0x40: "SPLIT_ALLOCATE_PAGE", 0x50: "SPLIT_PAGE", 0x60: "SPLIT_COMPLETE",
        0x70: "MOVE_PAGE_CONTENTS", 0x80: "SQUEEZE_PAGE", 0x90: "DELETE", 0xA0: "SPLIT_CLEANUP",
        0xB0: "UPDATE_META_PAGE", 0xC0: "VACUUM_ONE_PAGE",
    },
    "Gin": {
        0x10: "CREATE_PTREE", 0x20: "INSERT", 0x30: "SPLIT", 0x40: "VACUUM_PAGE",
        0x50: "DELETE_PAGE", 0x60: "UPDATE_META_PAGE", 0x70: "INSERT_LISTPAGE",
        0x80: "DELETE_LISTPAGE", 0x90: "VACUUM_DATA_LEAF_PAGE",
    },
    "Gist": {
        0x00: "PAGE_UPDATE", 0x10: "DELETE", 0x20: "PAGE_REUSE", 0x30: "PAGE_SPLIT",
        0x60: "PAGE_DELETE", 0x70: "ASSIGN_LSN",
    },
    "Sequence": {0x00: "LOG"},
    "SPGist": {
        0x10: "ADD_LEAF", 0x20: "MOVE_LEAFS", 0x30: "ADD_NODE", 0x40: "SPLIT_TUPLE",
        0x50: "PICKSPLIT", 0x60: "VACUUM_LEAF", 0x70: "VACUUM_ROOT", 0x80: "VACUUM_REDIRECT",
    },
    "BRIN": {
        0x00: "CREATE_INDEX", 0x10: "INSERT", 0x90: "INSERT+INIT", 0x20: "UPDATE",
        0xA0: "UPDATE+INIT", 0x30: "SAMEPAGE_UPDATE", 0x40: "REVMAP_EXTEND", 0x50: "DESUMMARIZE",
    },
    "CommitTs": {0x00: "ZEROPAGE", 0x10: "TRUNCATE"},
    "ReplicationOrigin": {0x00: "SET", 0x10: "DROP"},
    "Generic": {nibble << 4: "Generic" for nibble in range(16)},  # its identify ignores info
    "LogicalMessage": {0x00: "MESSAGE"},
}  # fmt: skip
_OTHER_NAMES: dict[int, dict[str, dict[int, str | None]]] = {
    13: {
        "Heap2": {0x10: "CLEAN", 0x20: "FREEZE_PAGE", 0x30: "CLEANUP_INFO"},
        "Transaction": {0x60: None},
        "Database": {0x00: "CREATE", 0x10: "DROP", 0x20: None},
    },
    14: {"Database": {0x00: "CREATE", 0x10: "DROP", 0x20: None}},
    17: {
        "Heap2": {
            0x10: "PRUNE_ON_ACCESS", 0x20: "PRUNE_VACUUM_SCAN", 0x30: "PRUNE_VACUUM_CLEANUP",
        },
        "XLOG": {0xE0: "CHECKPOINT_REDO"},
    },
}  # fmt: skip
_OTHER_NAMES[18] = _OTHER_NAMES[17]


@dataclass(frozen=True, slots=True)
class WalVersion:
    """The format of one major version."""

    magic: int
    layout: int
    """The major version, whose contents and flags to go by."""

    @property
    def image_compressed_mask(self) -> int:
        """The flags of a page image, any of which says that it is compressed."""
        return 0x02 if self.layout < 15 else 0x1C

    @property
    def image_apply_flag(self) -> int:
        """The flag of a page image that redo restores; without it, it is for verification only."""
        return 0x04 if self.layout < 15 else 0x02

    def image_methods(self) -> dict[int, str]:
        """Flag → compression method."""
        if self.layout < 15:
            return {0x02: "pglz"}
        return {0x04: "pglz", 0x08: "lz4", 0x10: "zstd"}

    def record_names(self) -> tuple[str, ...]:
        """Return 4096 names, at rmgr id * 16 + kind, with the kind of `record_kind`."""
        return _record_names(self.layout)


def version_of(magic: int) -> WalVersion | None:
    """Return the version, or None for a magic that this program does not know."""
    return WalVersion(magic, MAJORS[magic]) if magic in MAJORS else None


def foreign(system_id: int | None, magic: int, expected: int | None) -> str:
    """Say that WAL is another cluster's than that which is read, and what to do."""
    major = f"PostgreSQL {MAJORS[magic]}" if magic in MAJORS else f"page magic {magic:04X}"
    return (
        f"WAL of cluster {system_id} ({major}) among that of {expected}; initdb and pg_upgrade "
        "make a new cluster: keep the WAL of each in a directory of its own"
    )


def unknown_magic(magic: int) -> str:
    """Return why WAL with this page magic is not read."""
    return f"its page magic is {magic:04X}; WAL of PostgreSQL is read with {SUPPORTED} only"


@cache
def rmgr_names() -> tuple[str, ...]:
    """Return 256 names, as pg_waldump prints them."""
    unknown = (f"UNKNOWN ({number})" for number in range(len(RMGR_NAMES), RMGR_CUSTOM_MIN))
    return (*RMGR_NAMES, *unknown, *(f"custom{number:03d}" for number in range(128, 256)))


@cache
def _record_names(major: int) -> tuple[str, ...]:
    names: list[str] = []
    for rmgr in rmgr_names():
        known = {**_NAMES.get(rmgr, {}), **_OTHER_NAMES.get(major, {}).get(rmgr, {})}
        for kind in range(16):
            names.append(known.get(kind << 4) or f"UNKNOWN ({kind << 4:x})")
    return tuple(names)
