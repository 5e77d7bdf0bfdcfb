"""A daemon sees that its TLS file has changed, and warns each day before its certificate ends."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import Authority
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls import certificate_watch
from walkeeper_common.shell.tls.certificate_watch import (
    certificate_end_s,
    read_again,
    watch_files,
)
from walkeeper_common.shell.tls.own_credentials import use_credentials

DAY = datetime.timedelta(days=1)


@pytest.fixture(autouse=True)
def no_credentials() -> Iterator[None]:
    yield
    use_credentials(None)


def test_a_renewed_file_is_seen_without_a_connection(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    path = files.path(Role.SAFEKEEPER, "1")
    use_credentials(path)
    before_s = certificate_end_s()

    async def story() -> None:
        watching = asyncio.create_task(watch_files(look_s=0.01))
        Authority(str(tmp_path / "ca"), NOW + DAY).renew(path)
        await until(lambda: certificate_end_s() != before_s)
        watching.cancel()

    asyncio.run(story())
    assert before_s is not None and certificate_end_s() == before_s + DAY.total_seconds()


def test_the_warning_comes_again_until_the_file_is_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = TlsFiles(tmp_path, NOW - 80 * DAY)
    path = files.path(Role.SAFEKEEPER, "1")
    use_credentials(path)

    def warnings() -> int:
        return caplog.text.count("run walkeeper certs renew")

    async def story() -> None:
        watching = asyncio.create_task(watch_files(look_s=0.01, warn_each_s=0.02))
        await until(lambda: warnings() >= 3)
        Authority(str(tmp_path / "ca"), NOW).renew(path)
        end_s = certificate_end_s()
        await until(lambda: certificate_end_s() != end_s)
        known = warnings()
        await asyncio.sleep(0.1)
        assert warnings() == known
        watching.cancel()

    asyncio.run(story())


def test_a_day_has_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    use_credentials(TlsFiles(tmp_path, NOW - 80 * DAY).path(Role.SAFEKEEPER, "1"))

    caplog.clear()  # the command line loads the file before a daemon's log has a form

    async def story() -> None:
        watching = asyncio.create_task(watch_files(look_s=0.001))
        await asyncio.sleep(0.1)
        watching.cancel()

    asyncio.run(story())
    assert caplog.text.count("run walkeeper certs renew") == 1, "at its start, for the log"


def test_sighup_says_what_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read_again()
    assert "nothing is read again" in caplog.text and certificate_end_s() is None
    files = TlsFiles(tmp_path)
    path = files.path(Role.PROPOSER, "db1")
    use_credentials(path)
    files.authority.renew(path)
    read_again()
    assert "loaded the TLS file" in caplog.text


def test_without_a_file_there_is_nothing_to_watch() -> None:
    asyncio.run(asyncio.wait_for(watch_files(), 10))


class Looked(Exception):
    """The file was looked at."""


class WatchedFile:
    """A file that says so when it is looked at."""

    def reload(self) -> None:
        raise Looked


def test_each_look_reads_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_watch, "watched_files", lambda: [WatchedFile()])
    with pytest.raises(Looked):
        asyncio.run(asyncio.wait_for(watch_files(look_s=0.0), 5))
