"""Users files as administrators may leave them: no file at all, of Windows, and far too long."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.common.test_scram import verifier_of
from walkeeper_cli.users.writing import add_user, remove_user
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import User
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.users_file import BYTES_MAX, users_file

LINE = User("standby1", verifier_of("sesame"), frozenset((Role.REPLICA,))).line()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.touch(mode=0o600)
    path.write_text(LINE)
    return path


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Interrupt a test that waits for a writer who never comes."""

    def end(_number: int, _frame: object) -> None:
        raise TimeoutError

    former = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
@pytest.mark.usefixtures("time_limit")
def test_what_is_no_file_is_refused_and_the_former_users_stay(
    path: Path, make: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The reading of a pipe would wait for its writer, and so would every commit."""
    file = users_file(str(path))
    path.unlink()
    assert callable(make)
    make(path, 0o600)
    assert "standby1" in file.current().by_name
    assert "is no file" in caplog.text and "others may read" not in caplog.text
    with pytest.raises(Refused, match="is no file; check --users"):
        users_file(str(path))


def test_lines_of_windows_are_read_and_kept(path: Path) -> None:
    path.write_bytes(f"; standbys\r\n{LINE}\r\n\r\n".encode())
    assert set(users_file(str(path)).loaded.by_name) == {"standby1"}
    other = User("standby2", verifier_of("sesame"), frozenset((Role.REPLICA,)))
    add_user(str(path), other, replaces=False)
    assert set(users_file(str(path)).loaded.by_name) == {"standby1", "standby2"}
    remove_user(str(path), "standby1")
    assert set(users_file(str(path)).loaded.by_name) == {"standby2"}
    assert path.read_bytes().startswith(b"; standbys")


def test_a_file_that_is_too_long_is_not_read_whole(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(10 << 20)
    with pytest.raises(Refused, match=f"more than {BYTES_MAX >> 20} MB"):
        users_file(str(path))


def test_a_symbolic_link_to_a_file_is_a_file(path: Path, tmp_path: Path) -> None:
    """A secret of Kubernetes is a link to a link."""
    link = tmp_path / "link"
    link.symlink_to(path)
    assert set(users_file(str(link)).loaded.by_name) == {"standby1"}
