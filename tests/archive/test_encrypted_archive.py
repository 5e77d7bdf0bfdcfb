"""An encrypted archive: nothing in the clear, old keys open, and a lacking one is named."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive.test_verification import MB, SYSTEM_ID, wal_of
from tests.support.s3_server import BUCKET, s3_server
from walkeeper_archive.archive import Archive, Put, open_archive
from walkeeper_archive.archive_errors import ArchiveDamaged, KeyUnknown
from walkeeper_archive.layout import Packing, WalFile, history_file, segment_file
from walkeeper_archive.own_keys import own_keys, use_keys
from walkeeper_archive.sealing import KeyRing, parse_keys
from walkeeper_archive.verification import survey, verify
from walkeeper_cli.program import run
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_wal.sources.archive_names import archived_file
from walkeeper_wal.sources.wal_files import LocalFiles, ObjectFiles, WalFiles
from walkeeper_wal.wal_errors import HistoryError

OLD, NEW = f"2025 {'11' * 32}\n", f"2026a {'22' * 32}\n"
PACKINGS = list(Packing)
HISTORY = b"1\t0/400000\tno recovery target specified\n"


@pytest.fixture(autouse=True)
def no_keys() -> Iterator[None]:
    yield
    use_keys(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "archive").mkdir()
    return tmp_path


def with_keys(folder: Path, text: str | None, url: str | None = None) -> Archive:
    """Open the archive as a process with these keys does."""
    keys = folder / "keys"
    if text is not None:
        keys.write_text(text)
        keys.chmod(0o600)
    use_keys(None if text is None else str(keys))
    return open_archive(url or f"file://{folder}/archive", "main", SYSTEM_ID)


def file(number: int) -> WalFile:
    return segment_file(1, Lsn(number * MB), MB)


def path_of(folder: Path, name: str) -> Path:
    return folder / "archive" / "main" / str(SYSTEM_ID) / "00000001" / name


@pytest.mark.parametrize("packing", PACKINGS)
def test_nothing_is_in_the_clear_and_all_comes_back(folder: Path, packing: Packing) -> None:
    archive, wal = with_keys(folder, NEW), wal_of(Lsn(3 * MB))
    assert archive.put(file(3), wal, packing) is Put.STORED
    assert archive.put(history_file(2), HISTORY) is Put.STORED
    for path in (folder / "archive").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert wal[:40] not in data and b"recovery target" not in data, path
    assert archive.fetch(file(3).name, str(folder / "fetched"))
    assert (folder / "fetched").read_bytes() == wal
    assert archive.read(history_file(2)) == HISTORY
    assert list(verify(archive, survey(archive))) == []


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_receipt_names_the_key_and_has_the_sum_of_the_wal(folder: Path, packing: Packing) -> None:
    archive, wal = with_keys(folder, NEW), wal_of(Lsn(3 * MB))
    archive.put(file(3), wal, packing)
    receipt = archive.receipt(file(3))
    assert receipt is not None and receipt.key_id == "2026a" and receipt.packing is packing
    assert receipt.object_path.endswith(f"{packing.value}.aes")
    name = f"{file(3).name}.sha256"
    assert path_of(folder, name).read_text().endswith("\n# key 2026a\n")
    check = ["sha256sum", "--check", "--ignore-missing", "--strict", name]
    subprocess.run(check, cwd=path_of(folder, name).parent, check=True, capture_output=True)


def test_a_new_key_seals_while_the_old_one_still_opens(folder: Path) -> None:
    with_keys(folder, OLD).put(file(3), wal_of(Lsn(3 * MB)))
    archive = with_keys(folder, NEW + OLD)
    archive.put(file(4), wal_of(Lsn(4 * MB)), Packing.ZSTD)
    assert [archive.read(file(number)) for number in (3, 4)] == [
        wal_of(Lsn(number * MB)) for number in (3, 4)
    ]
    receipts = [archive.receipt(file(number)) for number in (3, 4)]
    assert [receipt and receipt.key_id for receipt in receipts] == ["2025", "2026a"]


def test_wal_of_before_the_first_key_is_read_with_one(folder: Path) -> None:
    with_keys(folder, None).put(file(3), wal_of(Lsn(3 * MB)))
    archive = with_keys(folder, NEW)
    assert archive.read(file(3)) == wal_of(Lsn(3 * MB))
    assert archive.put(file(3), wal_of(Lsn(3 * MB))) is Put.THERE_ALREADY


def test_two_safekeepers_put_one_file_and_the_receipt_has_the_key_of_the_object(
    folder: Path,
) -> None:
    """The first one dies before its receipt; each encryption has other bytes."""
    with_keys(folder, OLD).put(file(3), wal_of(Lsn(3 * MB)))
    path_of(folder, f"{file(3).name}.sha256").unlink()
    archive = with_keys(folder, NEW + OLD)
    assert archive.put(file(3), wal_of(Lsn(3 * MB))) is Put.THERE_ALREADY
    receipt = archive.receipt(file(3))
    assert receipt is not None and receipt.key_id == "2025"
    assert archive.read(file(3)) == wal_of(Lsn(3 * MB))


@pytest.mark.parametrize("text", [None, OLD, f"2026a {'33' * 32}\n"], ids=["no", "old", "wrong"])
def test_a_lacking_or_wrong_key_is_named_with_the_remedy(
    folder: Path, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with_keys(folder, NEW).put(file(3), wal_of(Lsn(3 * MB)))
    archive = with_keys(folder, text)
    with pytest.raises(KeyUnknown, match="with key 2026a") as refused:
        archive.read(file(3))
    assert not isinstance(refused.value, ArchiveDamaged), "`archive repair` would delete it"
    assert "--archive-keys" in str(refused.value) or "compare the key" in str(refused.value)
    assert run(["archive", "verify", f"file://{folder}/archive"]) == 1
    assert "2026a" in capsys.readouterr().err
    keys = ["--archive-keys", str(folder / "keys")]
    (folder / "keys").write_text(NEW)
    (folder / "keys").chmod(0o600)
    assert run(["archive", "verify", *keys, f"file://{folder}/archive"]) == 0


def test_an_object_passes_as_no_other_file(folder: Path) -> None:
    """An attacker who may write to the store, and has no key, moves an object and its receipt."""
    with_keys(folder, NEW).put(file(3), wal_of(Lsn(3 * MB)))
    for end in (".aes", ".sha256"):
        moved = path_of(folder, f"{file(4).name}{end}")
        shutil.copy(path_of(folder, f"{file(3).name}{end}"), moved)
    moved.write_text(moved.read_text().replace(file(3).name, file(4).name))
    with pytest.raises(KeyUnknown, match="another file's"):
        with_keys(folder, NEW).read(file(4))


@pytest.mark.parametrize("packing", PACKINGS)
def test_an_object_store_and_history_read_it(
    folder: Path, packing: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = wal_of(Lsn(3 * MB))
    with s3_server() as server, monkeypatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        s3, local = f"s3://{BUCKET}/sealed", f"file://{folder}/archive"
        readers: dict[str, WalFiles] = {s3: ObjectFiles(s3), local: LocalFiles(folder / "archive")}
        for url, files in readers.items():
            archive = with_keys(folder, NEW, url)
            archive.put(file(3), wal, packing)
            assert archive.read(file(3)) == wal
            (path,) = [path for path, size in files.list_files() if archived_file(path, size)]
            assert files.read(path).tobytes() == wal
            assert files.read_front(path, 100) == wal[:100]
            assert files.open_plain(path) is None
            use_keys(None)
            with pytest.raises(HistoryError, match="with key 2026a, which is not here"):
                files.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no key"),
        ("# a comment\n", "has no key"),
        (f"2026a {'1' * 63}\n", "line 1 of .* is no key"),
        (NEW + NEW, "two keys 2026a"),
        (f"a/b {'11' * 32}\n", "line 1 of .* is no key"),
    ],
)
def test_a_file_that_has_no_keys_is_refused_without_its_text(
    folder: Path, text: str, said: str
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        with_keys(folder, text)
    assert "1111" not in str(refused.value)
    assert "2222" not in repr(parse_keys(NEW, "keys"))


def test_keys_come_from_a_variable_or_a_file_of_their_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_keys() == KeyRing()
    monkeypatch.setenv("WAL_KEYS", NEW)
    use_keys("env:WAL_KEYS")
    assert own_keys() == parse_keys(NEW, "")
    with pytest.raises(Refused, match="MISSING, which is not set"):
        use_keys("env:MISSING")
    with pytest.raises(Refused, match="cannot read the keys"):
        use_keys(str(folder / "none"))
    with_keys(folder, NEW)
    (folder / "keys").chmod(0o604)
    with pytest.raises(Refused, match="every user may read"):
        own_keys()
