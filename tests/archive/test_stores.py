"""One suite for every store: what the port promises, on a directory, S3, GCS's API and Azure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.archive.cloud_servers import azure_server, gcs_server, has_azurite
from tests.support.s3_server import BUCKET, S3Server, s3_server
from walkeeper_archive.archive import Archive, Put
from walkeeper_archive.archive_errors import ArchiveConflict, ArchiveUnavailable, ForeignArchive
from walkeeper_archive.cloud_store import CloudStore
from walkeeper_archive.layout import Packing, partial_file, segment_file
from walkeeper_archive.local_store import LocalStore
from walkeeper_archive.object_store import ObjectStore
from walkeeper_archive.open_store import open_store
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn

MB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as served, pytest.MonkeyPatch.context() as patch:
        for name, value in served.environment.items():
            patch.setenv(name, value)
        yield served


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("gcs")
    with gcs_server(directory) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not has_azurite():
        pytest.skip("azurite is not here: `make test` installs it from npm")
    directory = tmp_path_factory.mktemp("azure")
    with azure_server(directory) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(params=["directory", "s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return open_store(f"file://{tmp_path}")
    request.getfixturevalue({"s3": "server"}.get(request.param, request.param))
    scheme = {"gcs": "gs", "azure": "az"}.get(request.param, request.param)
    return open_store(f"{scheme}://{BUCKET}/prefix/{tmp_path.name}")


def content(store: ObjectStore, path: str) -> bytes | None:
    found = store.get(path)
    return None if found is None else bytes(found)


def test_an_object_that_was_put_is_there_and_no_other(store: ObjectStore) -> None:
    assert store.get("a/b") is None
    assert store.put_new("a/b", b"wal")
    assert content(store, "a/b") == b"wal"
    assert store.get("a/bc") is None
    assert store.get("a") is None


def test_no_object_is_ever_replaced(store: ObjectStore) -> None:
    assert store.put_new("a/b", b"first")
    assert not store.put_new("a/b", b"second")
    assert content(store, "a/b") == b"first"


def test_listing_is_in_order_starts_at_a_given_path_and_knows_sizes(store: ObjectStore) -> None:
    paths = ["m/1/a", "m/1/a.x", "m/1/aa/b", "m/1/ab", "m/10/a", "m/2/z", "n/1/a"]
    for path in reversed(paths):
        store.put_new(path, path.encode() * 3) or pytest.fail(path)
    assert [o.path for o in store.list_from("m")] == sorted(p for p in paths if p[0] == "m")
    assert [o.path for o in store.list_from("m/1")] == sorted(p for p in paths if "m/1/" in p)
    assert [o.path for o in store.list_from("m/1", "m/1/a.x")] == ["m/1/aa/b", "m/1/ab"]
    assert [o.size for o in store.list_from("n")] == [15]
    assert list(store.list_from("o")) == []
    assert store.folders("m") == ["1", "10", "2"]
    assert store.folders("o") == []


def test_deleting_twice_is_no_error(store: ObjectStore) -> None:
    store.put_new("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    assert store.get("a/b") is None


def test_an_archive_is_the_same_on_every_store(store: ObjectStore, tmp_path: Path) -> None:
    archive = Archive(store, "main", 7000000000000000001)
    whole, wal = segment_file(1, Lsn(MB), MB), Random(1).randbytes(MB)
    part = partial_file(1, Lsn(2 * MB + 8192), MB)
    for packing in (Packing.ZSTD, Packing.PLAIN):
        assert archive.put(whole, wal, packing) is (
            Put.STORED if packing is Packing.ZSTD else Put.THERE_ALREADY
        )
    assert archive.put(part, wal[:8192]) is Put.STORED
    with pytest.raises(ArchiveConflict, match="has other content"):
        archive.put(whole, wal[::-1])
    assert archive.fetch(whole.name, str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == wal
    assert archive.fetch_tail(part.segment, str(tmp_path / "tail"), MB) == part.end_lsn
    assert not archive.fetch("000000010000000000000009", str(tmp_path / "absent"))
    with pytest.raises(ForeignArchive, match="another database system"):
        Archive(store, "main", 5).refuse_foreign()
    for found in list(archive.objects()):
        archive.delete(found)
    assert list(archive.objects()) == []


def test_a_store_that_knows_no_offset_is_listed_from_there_all_the_same(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azurite sends all of it, and a listing that began too early ended before the tail."""
    store = CloudStore(f"{server.url}/offset")
    for path in ("m/a", "m/b", "m/c"):
        store.put_new(path, b"x")
    plain = store._api.list
    monkeypatch.setattr(store._api, "list", lambda s, prefix, offset: plain(s, prefix))
    assert [found.path for found in store.list_from("m", "m/a")] == ["m/b", "m/c"]


def test_a_panic_of_the_library_is_a_failure_like_others(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyo3 raises it past `except Exception`, and it would end a process that acknowledges."""
    panic = type("PanicException", (BaseException,), {})
    store = CloudStore(server.url)
    for doing, raised in ((panic, ArchiveUnavailable), (KeyboardInterrupt, KeyboardInterrupt)):

        def fails(*_: object, doing: Any = doing) -> None:
            raise doing("index out of bounds")

        monkeypatch.setattr(store, "_api", SimpleNamespace(get=fails, exceptions=None))
        with pytest.raises(raised, match="index out of bounds"):
            store.get("a")


def test_a_directory_that_is_not_mounted_is_not_an_empty_archive(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "not-mounted"))
    for ask in (
        lambda: store.get("a"),
        lambda: list(store.list_from("")),
        lambda: store.put_new("a/b", b""),
    ):
        with pytest.raises(ArchiveUnavailable, match="not-mounted"):
            ask()
    assert not (tmp_path / "not-mounted").exists()


def test_a_half_written_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.1.2.3.tmp").write_bytes(b"half")
    assert list(LocalStore(str(tmp_path)).list_from("")) == []


def test_files_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    LocalStore(str(tmp_path)).put_new("a/b", b"x")
    assert os.stat(tmp_path / "a").st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "a/b").st_mode & 0o777 == 0o600


def test_a_setgid_directory_is_readable_by_its_group_whatever_the_umask(tmp_path: Path) -> None:
    """The safekeepers' user writes it, and PostgreSQL's user restores from it."""
    os.chmod(tmp_path, 0o2750)
    before = os.umask(0o077)
    try:
        LocalStore(str(tmp_path)).put_new("a/b/c", b"x")
    finally:
        os.umask(before)
    modes = [os.stat(tmp_path / path).st_mode & 0o7777 for path in ("a", "a/b", "a/b/c")]
    assert modes == [0o2750, 0o2750, 0o640]


class Killed(BaseException):
    """The process is gone, in the middle of a put."""


def test_a_killed_put_leaves_the_whole_or_nothing_and_the_next_makes_it_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The put dies at every system call that changes the disk.

    A power cut takes each name whose folder was not synced after it. So the second put must not
    trust a name that it sees.
    """
    left, lasting = 0, set[str]()

    def counted(call: Any) -> Any:
        def work(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return call(*arguments, **options)

        return work

    def synced(path: str) -> None:
        os.stat(path)
        lasting.update(os.path.join(path, name) for name in os.listdir(path))

    real = {name: getattr(os, name) for name in ("mkdir", "open", "write", "fsync", "link")}
    fake_os = SimpleNamespace(**{**vars(os), **{n: counted(call) for n, call in real.items()}})
    monkeypatch.setattr("walkeeper_archive.local_store.os", fake_os)
    monkeypatch.setattr("walkeeper_archive.local_store.sync_path", counted(synced))
    step, was_put = 0, False
    while not was_put:
        step += 1
        left, root = step, tmp_path / str(step)
        root.mkdir()
        lasting.clear()
        try:
            was_put = LocalStore(str(root)).put_new("a/b/c", b"wal" * 1000)
        except Killed:
            left = 0
            assert LocalStore(str(root)).get("a/b/c") in (None, b"wal" * 1000)
            second = LocalStore(str(root))
            if not second.put_new("a/b/c", b"wal" * 1000):
                second.sync("a/b/c")
        assert {str(root / "a"), str(root / "a/b"), str(root / "a/b/c")} <= lasting, step
        assert [found.path for found in LocalStore(str(root)).list_from("")] == ["a/b/c"]
    assert step > 8


def test_a_full_disk_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("walkeeper_archive.local_store.os.write", no_space)
    with pytest.raises(ArchiveUnavailable, match="No space left"):
        LocalStore(str(tmp_path)).put_new("a/b", b"x")
    assert list((tmp_path / "a").iterdir()) == []


def test_a_server_that_is_down_full_or_lies_is_unavailable_not_empty(server: S3Server) -> None:
    store = open_store(f"{server.url}/down")
    store.put_new("a", b"x" * 1000)
    server.faults.full = True
    with pytest.raises(ArchiveUnavailable, match=r"writing s3://wal/prefix/down/b"):
        store.put_new("b", b"x")
    server.faults.full, server.faults.cut_answers = False, True
    with pytest.raises(ArchiveUnavailable, match=r"reading s3://wal/prefix/down/a"):
        store.get("a")
    server.faults.cut_answers, server.faults.down = False, True
    for ask in (
        lambda: store.get("a"),
        lambda: list(store.list_from("")),
        lambda: store.folders(""),
    ):
        with pytest.raises(ArchiveUnavailable, match=r"s3://wal/prefix/down"):
            ask()
    server.faults.down = False
    assert content(store, "a") == b"x" * 1000


def test_a_bucket_that_is_not_there_is_not_an_empty_archive(server: S3Server) -> None:
    with pytest.raises(ArchiveUnavailable, match="nobucket"):
        open_store("s3://nobucket/x").folders("")


def test_a_url_that_means_nothing_is_refused() -> None:
    """`memory://` means something to obstore: WAL would leave the disk for nowhere."""
    for url in ("nonsense://x/y", "memory:///x", "file://host/path"):
        with pytest.raises(Refused, match=url):
            open_store(url)
