"""The findings of `walkeeper check` on certificates: WARNING in the last 14 days, then FAILED."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.common.test_revocation_lists import made_list, with_text
from tests.support.tls_cluster import speaking_as
from tests.support.waiting import LIMIT_S
from tests.tls_files import NOW, TlsFiles
from walkeeper_admin.check.certificates import DAY_S, SeenCertificate, from_certificates, graded
from walkeeper_admin.check.finding import Finding, Grade
from walkeeper_cli.certs.authority import Authority
from walkeeper_common.access.certificate_identity import identity_uri
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls.credentials import WARN_BEFORE_S, Credentials

NOW_S = 1_800_000_000.0
OTHERS = [SeenCertificate("the CA", NOW_S + 900 * DAY_S), SeenCertificate("s1", NOW_S + 80 * DAY_S)]


@pytest.mark.parametrize(
    ("end_s", "in_use", "grade", "text"),
    [
        (NOW_S + WARN_BEFORE_S, True, Grade.OK, "that of s2 ends in 14 days, on 2027-01-29"),
        (NOW_S + WARN_BEFORE_S - 1, True, Grade.WARNING, "that of s2 ends in 14 days"),
        (NOW_S, True, Grade.FAILED, "that of s2 expired on 2027-01-15"),
        (None, True, Grade.FAILED, "that of s2 has expired"),
        (NOW_S - 1, False, Grade.WARNING, "that of s2 expired on 2027-01-15"),
    ],
)
def test_an_end_in_sight_is_a_warning_and_one_in_the_past_a_failure(
    end_s: float | None, in_use: bool, grade: Grade, text: str
) -> None:
    found = graded([*OTHERS, SeenCertificate("s2", end_s, "renew it", in_use)], NOW_S)
    assert found.grade is grade and text in found.text
    assert ("s1" in found.text) is (grade is Grade.OK)
    assert found.remedy == ("" if grade is Grade.OK else "renew it")


@contextmanager
def shaking_hands(file: str) -> Iterator[tuple[str, int]]:
    """Give the address of a server that has this TLS file, and answers one handshake."""
    context = Credentials(file).server_context()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1)
            except (ssl.SSLError, OSError):
                return  # the client refused the certificate

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        yield listener.getsockname()
        serving.join(LIMIT_S)


def checked(own: str, of_member: str) -> Finding:
    with speaking_as(own), shaking_hands(of_member) as address:
        (finding,) = asyncio.run(from_certificates([address], ["safekeeper 1"], LIMIT_S))
    return finding


def aged(files: TlsFiles, tmp_path: Path, age: datetime.timedelta) -> str:
    """Return the file of a safekeeper whose certificate was issued so long ago."""
    authority = Authority(str(tmp_path / "ca"), NOW - age)
    path = str(tmp_path / f"aged_{age.days}.pem")
    authority.issue(path, [identity_uri("*", Role.SAFEKEEPER, "1")], ("127.0.0.1",))
    return path


def test_a_handshake_shows_the_end_of_a_safekeepers_certificate(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    own = files.path(Role.MONITOR, "alice")
    fine = checked(own, files.path(Role.SAFEKEEPER, "1"))
    assert fine.grade is Grade.OK and "safekeeper 1 ends in 90 days" in fine.text
    assert "the CA CN=" in fine.text and "this command ends" in fine.text
    soon = checked(own, aged(files, tmp_path, datetime.timedelta(days=80)))
    assert soon.grade is Grade.WARNING and "safekeeper 1 ends in 10 days" in soon.text
    late = checked(own, aged(files, tmp_path, datetime.timedelta(days=91)))
    assert late.grade is Grade.FAILED and "safekeeper 1 has expired" in late.text


def test_a_ca_that_has_not_signed_the_own_certificate_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = TlsFiles(tmp_path / "old", NOW - datetime.timedelta(days=3651))
    files = TlsFiles(tmp_path)
    own = Path(files.path(Role.MONITOR, "alice"))
    own.write_bytes(own.read_bytes() + (tmp_path / "old/ca/ca.pem").read_bytes())
    del old
    found = checked(str(own), files.path(Role.SAFEKEEPER, "1"))
    assert found.grade is Grade.WARNING and "that of another CA" in found.text


def test_without_a_tls_file_no_certificate_is_looked_at() -> None:
    (found,) = asyncio.run(from_certificates([("127.0.0.1", 1)], ["safekeeper 1"], LIMIT_S))
    assert found.grade is Grade.OK and "--tls" in found.text


def test_a_list_of_revoked_certificates_that_has_ended_is_a_warning(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    own, member = files.path(Role.ADMIN, "alice"), files.path(Role.SAFEKEEPER, "1")
    with_text(own, made_list(tmp_path / "ca"))
    assert checked(own, member).grade is Grade.OK
    Path(own).unlink()
    files.path(Role.ADMIN, "alice")
    day = datetime.timedelta(days=1)
    with_text(own, made_list(tmp_path / "ca", begins=NOW - 2 * day, ends=NOW - day))
    found = checked(own, member)
    assert found.grade is Grade.WARNING and "still come in" in found.why
    assert "the list of revoked ones of CN=walkeeper CA expired on" in found.text
