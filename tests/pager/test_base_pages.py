"""Pages of a base backup, read by several threads side by side."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.postgres_server import PostgresServer, initialised_directory, make_directory
from walkeeper_pager.base_pages import _FILES_OPEN_MAX, BasePages
from walkeeper_pager.page_names import Place
from walkeeper_pager.pager import Pager
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_wal.wal_errors import HistoryError

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


def test_a_page_of_the_running_servers_tablespace_is_refused(tmp_path: Path) -> None:
    """A map of a copy led to the server that ran on, and the pager served its later page."""
    place, settings = make_directory(), {"fsync": "off", "autovacuum": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            f"CREATE TABLESPACE elsewhere LOCATION '{place}'",
            "CREATE TABLE spaced (id int) TABLESPACE elsewhere",
            "INSERT INTO spaced VALUES (1)",
        )
        file = Place.parse(str(server.sql("SELECT pg_relation_filepath('spaced')")))
        oid = server.sql("SELECT max(oid) FROM pg_tablespace")
        server.stop()
        copy = Path(shutil.copytree(server.data, tmp_path / "copy", symlinks=True))
        (copy / "tablespace_map").write_text(f"{oid} {place}\n")
        base = BasePages(str(copy))
        assert base.read(file, 0) is not None
        server.start()
        server.sql("DELETE FROM spaced", "INSERT INTO spaced VALUES (2)", "CHECKPOINT")
        server.stop()
        pager = Pager(tmp_path / "state", BasePages(str(copy)), history_bytes=0)
        with pytest.raises(HistoryError, match="block 0 is later than the end of the backup"):
            pager.page(file, 0)
        assert pager.page(Place.parse("base/1/1259"), 0)
        pager.close()
    shutil.rmtree(place)
