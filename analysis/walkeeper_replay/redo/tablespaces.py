"""The tablespaces of a base backup, or of a stopped server, and whether they are its own.

    spaces = Tablespaces(root, is_backup=True)
    spaces.places                    {OID: directory}, as a recovery from here would link them
    spaces.refuse_other(path)        for each file that is read
    spaces.refuse_later(path, pages, end_lsn)

Contract: the links of a copy may still lead to the server that it was copied from. That server's
pages are later. So a link that leads out of the directory needs a proof that the copy lies there.
For a backup it is tablespace_map, or the backup_manifest that pg_basebackup wrote. For a stopped
server it is that no other directory has the same link. Pages from outside may not be later than the
end of the backup.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from walkeeper_common.lsn import Lsn
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.wal_errors import HistoryError

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SPACE = re.compile(r"^([0-9]+) ((?:[^\\\n]|\\.)+)$", re.MULTILINE | re.DOTALL)
_DATA_DIRECTORY = re.compile(r'"-D" "([^"]+)"')
_MANIFEST_SUM = re.compile(rb'"Manifest-Checksum": "([0-9a-f]{64})"}\n?')
_READ_BYTES = 1 << 24


class Tablespaces:
    """See the module."""

    def __init__(self, root: Path, *, is_backup: bool) -> None:
        self._root = root
        links = (root / "pg_tblspc").glob("*")
        found = {int(path.name): path for path in links if path.name.isdigit()}
        path = root / "tablespace_map"
        mapped = path.read_text("utf-8", "surrogateescape") if path.is_file() else ""
        for oid, place in _SPACE.findall(mapped):
            found[int(oid)] = root / _ESCAPED.sub(r"\1", place)
        self.places = dict(sorted(found.items()))
        self._linked = [link for link in self.places.values() if self._leads_out(link)]
        """Links that nothing but the manifest proves."""
        self._has_manifest = is_backup and (root / "backup_manifest").is_file()
        for link in self._linked:
            if not self._has_manifest and (is_backup or self._has_another(link)):
                raise self._refusal(link)

    def _leads_out(self, link: Path) -> bool:
        is_link = link.parent == self._root / "pg_tblspc" and link.is_symlink()
        return is_link and not link.resolve().is_relative_to(self._root.resolve())

    def _has_another(self, link: Path) -> bool:
        """Return whether the directory that the server ran in is another one with this link."""
        options = self._root / "postmaster.opts"  # each start writes it
        found = _DATA_DIRECTORY.search(options.read_text()) if options.is_file() else None
        if found is None:
            return not options.is_file()
        other = Path(found[1])
        if not other.is_dir() or other.resolve() == self._root.resolve():
            return False
        return (other / "pg_tblspc" / link.name).resolve() == link.resolve()

    def _refusal(self, link: Path) -> HistoryError:
        return HistoryError(
            f"{link} leads to {link.resolve()}, and nothing says that the copy of the tablespace "
            "lies there: links of a copy may lead to the running server's later pages. Write a "
            f"line `{link.name} DIRECTORY` into {self._root}/tablespace_map, with the directory "
            "of the copy"
        )

    def refuse_other(self, path: Path) -> None:
        """Refuse a file behind a link that is not as the manifest has it."""
        for link in self._linked if self._has_manifest else ():
            if path.is_relative_to(link) and not self._is_in_manifest(path):
                raise self._refusal(link)

    def refuse_later(self, path: Path, pages: Bytes, end_lsn: int) -> None:
        """Refuse pages from outside of the directory that are later than its end."""
        if path.is_relative_to(self._root / "base") or path.is_relative_to(self._root / "global"):
            return
        halves = pages[:, :8].copy().view("<u4").astype(np.int64)  # pd_lsn
        later = np.flatnonzero((halves[:, 0] << 32 | halves[:, 1]) > end_lsn)
        if len(later) and not path.resolve().is_relative_to(self._root.resolve()):
            raise HistoryError(
                f"{path}: block {later[0]} is later than the end of the backup, {Lsn(end_lsn)}, so "
                "it is the running server's: write where the copy of the tablespace is into "
                f"{self._root}/tablespace_map"
            )

    def _is_in_manifest(self, path: Path) -> bool:
        known = self._manifest.get(str(path.relative_to(self._root)))
        if known is None or not path.is_file():
            return known is None and not path.is_file()
        if path.stat().st_size != known["Size"]:
            return False
        algorithm = known.get("Checksum-Algorithm")
        return algorithm is None or _checksum(path, algorithm) == known["Checksum"]

    @cached_property
    def _manifest(self) -> dict[str, dict[str, Any]]:
        """Return the manifest's files by their paths; HistoryError if its bytes have changed."""
        path = self._root / "backup_manifest"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _damaged_manifest(path, str(error.strerror)) from error
        # The last line has the sum of all before it, as pg_verifybackup compares it.
        end = content.rstrip(b"\n").rfind(b"\n") + 1
        known = _MANIFEST_SUM.fullmatch(content[end:])
        if known is None or hashlib.sha256(content[:end]).hexdigest() != known[1].decode():
            raise _damaged_manifest(path, "damaged or cut: its Manifest-Checksum is wrong")
        files = json.loads(content)["Files"]
        return {each["Path"]: each for each in files if "Path" in each}


def _damaged_manifest(path: Path, why: str) -> HistoryError:
    return HistoryError(f"{path}: {why}; read another copy of the base backup")


def _checksum(path: Path, algorithm: str) -> str:
    """Return a file's checksum as pg_basebackup writes it into a manifest."""
    made: Any = None if algorithm == "CRC32C" else hashlib.new(algorithm.lower())
    sum_of_all = 0
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            if made is None:
                sum_of_all = crc32c(piece, sum_of_all)
            else:
                made.update(piece)
    return sum_of_all.to_bytes(4, "little").hex() if made is None else str(made.hexdigest())
