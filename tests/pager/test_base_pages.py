"""Pages of a base backup, read by several threads side by side."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.postgres_server import initialised_directory
from walkeeper_pager.base_pages import _FILES_OPEN_MAX, BasePages
from walkeeper_pager.page_names import Place
from walkeeper_replay.redo.page import PAGE_BYTES

pytestmark = pytest.mark.postgres
HELD_S = 0.5


def relations(data: Path) -> list[tuple[Place, bytes]]:
    """Return the first page of each relation of a database."""
    files = [path for path in (data / "base" / "1").iterdir() if path.name.isdigit()]
    pages = [(Place.parse(f"base/1/{path.name}"), path.read_bytes()[:PAGE_BYTES]) for path in files]
    return [(place, page) for place, page in sorted(pages) if page]


def test_a_page_is_of_its_own_file_whatever_other_threads_read_meanwhile() -> None:
    """Folding closed the file of a request, and the request got a page of another relation."""
    data = initialised_directory(("--wal-segsize=1",))
    base, (first, *others) = BasePages(str(data)), relations(data)
    assert len(others) > _FILES_OPEN_MAX
    read, held = os.pread, list[threading.Thread]()

    def read_all() -> None:
        for place, page in others:
            found = base.read(place, 0)
            assert found is not None and found.tobytes() == page, f"{place}"

    def held_up(descriptor: int, size: int, offset: int) -> bytes:
        if not held:
            held.append(threading.Thread(target=read_all))
            held[0].start()
            held[0].join(HELD_S)  # the lock keeps the other thread waiting
        return read(descriptor, size, offset)

    with patch("walkeeper_pager.base_pages.os.pread", held_up):
        found = base.read(first[0], 0)
        held[0].join()
    assert found is not None and found.tobytes() == first[1]
