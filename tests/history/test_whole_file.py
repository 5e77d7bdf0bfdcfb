"""A command writes to the place that it gets, and harms no file there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_history.whole_file import whole_file
from walkeeper_wal.wal_errors import HistoryError


def test_a_file_has_what_it_had_until_the_whole_is_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path, encoding="utf-8") as file:
        file.write("half")
        file.flush()
        assert path.read_text() == "old"
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with whole_file(path, encoding="utf-8") as file:
        file.write("wh\u00f6le")
    assert path.read_bytes() == b"wh\xc3\xb6le"
    assert os.listdir(tmp_path) == ["rows.csv"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_symbolic_link_stays_and_what_it_points_to_is_written(
    tmp_path: Path, is_there: bool
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    if is_there:
        (folder / "file").write_text("old")
    (tmp_path / "link").symlink_to("elsewhere/file")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (folder / "file").read_text() == "new" and os.listdir(folder) == ["file"]


def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with whole_file(pipe) as file:
        file.write(b"rows")
    reader.join(LIMIT_S)
    assert read == [b"rows"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_into_and_stays_a_device(tmp_path: Path) -> None:
    """As root it became a file, and every program's /dev/null with it."""
    device = Path("/dev/null")
    if os.geteuid() == 0:  # should it go wrong again, with a device of its own
        device = tmp_path / "null"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    try:
        with whole_file(device) as file:
            file.write(b"rows")
    except HistoryError as error:  # a file system without devices
        pytest.skip(str(error))
    assert stat.S_ISCHR(device.stat().st_mode)


def test_the_stdout_of_a_process_is_written_into(tmp_path: Path) -> None:
    program = (
        "from walkeeper_history.whole_file import whole_file as w\n"
        "with w('/dev/stdout') as file: file.write(b'rows')"
    )
    words = [sys.executable, "-c", program]
    assert subprocess.run(words, capture_output=True, check=True, timeout=LIMIT_S).stdout == b"rows"
    into = tmp_path / "out"
    with into.open("wb") as out:
        subprocess.run(words, stdout=out, check=True, timeout=LIMIT_S)
    assert into.read_bytes() == b"rows"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "rows"
    with (
        pytest.raises(HistoryError, match=f"^{path}: No such file or directory$"),
        whole_file(path),
    ):
        pass
    with (
        pytest.raises(HistoryError, match=f"^{tmp_path}: Is a directory$"),
        whole_file(tmp_path),
    ):
        pass
