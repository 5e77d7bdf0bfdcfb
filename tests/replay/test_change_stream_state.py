"""The saved state of a change stream is of one scope and one place, whole or not there at all."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from pickle import Unpickler
from sqlite3 import connect
from typing import Any

import pytest

from walkeeper_replay.catalogs.catalog_layouts import OIDS
from walkeeper_replay.catalogs.growing_catalogs import GrowingCatalogs
from walkeeper_replay.redo import page_file
from walkeeper_replay.redo.apply import GONE, KNOWN
from walkeeper_replay.redo.bounded_pages import BoundedPages
from walkeeper_replay.redo.bulk_loads import BulkLoads
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.page_file import BLOCKS, PageFile, PageRow
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.streams.change_windows import ChangeStream, Scope
from walkeeper_replay.streams.open_changes import OpenChanges
from walkeeper_replay.tuples.open_at_start import OpenAtStart
from walkeeper_replay.tuples.xids import Xids
from walkeeper_wal.wal_errors import HistoryError

LATER_CATALOGS = ("pg_proc", "pg_operator", "pg_collation")
OURS, OTHERS = Scope(("orders",), "postgres"), Scope(("late",), "postgres")


def test_a_state_of_another_scope_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with closing(ChangeStream.open(path, OURS)) as stream:
        stream.save()
    with closing(ChangeStream.open(path, OURS)) as stream:
        assert stream.scope == OURS
    with pytest.raises(HistoryError, match="was begun for other tables"):
        ChangeStream.open(path, OTHERS)


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with closing(ChangeStream.open(path, OURS)) as stream:
        stream.save()
    whole = path.read_bytes()
    pickled = whole.index(b"orders")
    for damaged in (b"another file" + whole, whole[:pickled] + b"?" + whole[pickled + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(HistoryError, match="damaged"):
            ChangeStream.open(path, OURS)


def classes_in(state: bytes) -> set[str]:
    """Return those of our classes that a pickled state names, as MODULE.CLASS."""
    found = set()

    class Noted(Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.add(f"{module}.{name}")
            return super().find_class(module, name)

    Noted(BytesIO(state)).load()
    return {name for name in found if name.startswith("walkeeper")}


def test_a_state_of_an_earlier_version_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks the rows of catalogs that were not read then, and WAL of them may be gone."""
    path = tmp_path / "state"
    older = {name: oid for name, oid in OIDS.items() if name not in LATER_CATALOGS}
    with monkeypatch.context() as then, closing(ChangeStream.open(path, OURS)) as stream:
        then.setattr(page_file, "_FORM", "change stream 4")
        stream._catalogs.store = PageStore(low_nodes=tuple(older.values()))
        stream.save()
    with pytest.raises(HistoryError, match="of another version of walkeeper; remove it") as refused:
        ChangeStream.open(path, OURS)
    assert str(path) in str(refused.value)


def test_a_state_of_other_parts_has_another_form() -> None:
    """Python would open it, and fail or answer wrongly later: give it a new form, and note it."""
    parts = (ChangeStream, GrowingCatalogs, PageStore, BoundedPages, OpenChanges, Scope)
    made = [f"{part.__name__}.{each.name}" for part in parts for each in fields(part)]
    for one in (HeapFiles(), Xids(None), OpenAtStart(), BulkLoads()):
        made += [f"{type(one).__name__}.{name}" for name in vars(one)]
    made += [f"{name} {oid}" for name, oid in OIDS.items()]
    digest = hashlib.blake2b("\n".join(sorted(made)).encode(), digest_size=8).hexdigest()
    assert (page_file._FORM, digest) == ("change stream 10", "2ae4c36652141f31")


def page(block: int, letter: bytes, *, of: int = 3, state: int = KNOWN) -> PageRow:
    return PageRow(of * BLOCKS + block, state, letter * PAGE_BYTES)


def test_pages_are_those_of_the_last_save(tmp_path: Path) -> None:
    """A process that ends between two saves leaves pages and state as the first one did."""
    path = tmp_path / "state"
    with closing(PageFile(path)) as file:
        file.put([page(1, b"a"), page(2, b"a")])
        file.save(b"first")
        file.put([page(2, b"b"), page(5, b"b")])
        file.mark_gone(3, 1)
        assert [row.state for row in file.pages_of(3)] == [GONE] * 3
    with closing(PageFile(path)) as file:
        assert file.saved() == b"first"
        assert list(file.pages_of(3)) == [page(1, b"a"), page(2, b"a")]


def test_pages_that_are_gone_stay_until_they_are_forgotten(tmp_path: Path) -> None:
    with closing(PageFile(tmp_path / "state")) as file:
        file.put([page(1, b"a"), page(2, b"a"), page(9, b"c", of=4)])
        file.mark_gone(3, 2)
        assert list(file.pages_of(3)) == [page(1, b"a"), page(2, b"a", state=GONE)]
        file.forget_gone(3)
        assert list(file.get([3 * BLOCKS + 1, 3 * BLOCKS + 2])) == [page(1, b"a")]
        assert list(file.pages_of(4)) == [page(9, b"c", of=4)]


def test_a_damaged_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with closing(PageFile(path)) as file:
        file.put([page(1, b"a")])
        file.save(b"state")
    path.write_bytes(path.read_bytes().replace(b"aaaaaaaa", b"aaaabaaa", 1))
    with closing(PageFile(path)) as file, pytest.raises(HistoryError, match="damaged"):
        list(file.pages_of(3))


def test_the_form_of_a_state_changes_with_the_classes_that_it_names(tmp_path: Path) -> None:
    """A state names its classes by their modules, so a move of one makes older states unreadable.

    If this fails, raise the number of `_FORM`: then an older state is refused with its remedy.
    """
    path = tmp_path / "state"
    with closing(ChangeStream.open(path, OURS)) as stream:
        stream.save()
    with closing(connect(path)) as file:
        ((form, state),) = file.execute("SELECT name, data FROM saved").fetchall()
    assert (form, classes_in(state)) == (
        "change stream 10",
        {
            "walkeeper_replay.catalogs.growing_catalogs.GrowingCatalogs",
            "walkeeper_replay.redo.heap_files.HeapFiles",
            "walkeeper_replay.redo.store.Events",
            "walkeeper_replay.streams.change_windows.Scope",
            "walkeeper_replay.streams.open_changes.OpenChanges",
        },
    )
