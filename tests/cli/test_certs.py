"""`walkeeper certs`: files that only their owner can read, with the names of the request."""

from __future__ import annotations

import datetime
import os
import re
import stat
from pathlib import Path

import pytest

from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import CA_CERTIFICATE, LEAF_DAYS, Authority, show
from walkeeper_cli.program import run
from walkeeper_common.access.identity import Role
from walkeeper_common.errors import Refused
from walkeeper_common.shell.tls.credentials import Credentials

ISSUE = ("certs", "issue", "--role", "safekeeper", "--name", "2", "--host", "h2", "--host", "::1")


def test_three_commands_make_a_safekeepers_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, out = tmp_path / "ca", tmp_path / "sk2.pem"
    given = ("--dir", str(directory))
    assert run(["certs", "init", *given]) == 0
    assert run([*ISSUE, *given, "--out", str(out)]) == 0
    assert run(["certs", "show", str(out)]) == 0
    assert "walkeeper://*/safekeeper/2 at h2, ::1, until " in capsys.readouterr().out
    shown = show(str(out))
    assert shown.identity.safekeeper_id == 2
    assert 89 <= (shown.ends - NOW).days <= LEAF_DAYS
    for path in (out, directory / "ca.key", directory / "ca.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    labels = re.findall("BEGIN ([A-Z ]+)", out.read_text())
    assert labels == ["PRIVATE KEY", "CERTIFICATE", "CERTIFICATE"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


def test_a_new_owner_replaces_no_file_that_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--dir", str(tmp_path / "ca"))
    out = str(tmp_path / "sk2.pem")
    assert run([*ISSUE, *given, "--out", out]) == 1
    assert "walkeeper certs init" in capsys.readouterr().err
    assert run(["certs", "init", *given]) == 0
    key = (tmp_path / "ca" / "ca.key").read_bytes()
    assert run(["certs", "init", *given]) == 1
    assert (tmp_path / "ca" / "ca.key").read_bytes() == key
    assert run([*ISSUE, *given, "--out", out]) == 0
    first = Path(out).read_bytes()
    assert run([*ISSUE, *given, "--out", out]) == 1
    assert "certs renew" in capsys.readouterr().err
    assert Path(out).read_bytes() == first


@pytest.mark.parametrize(
    "given",
    [
        ("--role", "safekeeper", "--name", "2"),
        ("--role", "safekeeper", "--name", "two", "--host", "h2"),
        ("--role", "root", "--name", "p1"),
        ("--role", "proposer", "--name", "a/b"),
        ("--role", "proposer", "--name", "p1", "--cluster", "../x"),
        ("--role", "safekeeper", "--name", "2", "--host", "hôte"),
    ],
)
def test_names_that_no_peer_would_accept_are_refused(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    out = tmp_path / "new.pem"
    Authority.create(str(tmp_path / "ca"), NOW)
    code = run(["certs", "issue", "--dir", str(tmp_path / "ca"), *given, "--out", str(out)])
    assert code in (1, 2)
    assert not out.exists()


def test_a_file_is_renewed_after_two_thirds_of_its_time(tmp_path: Path) -> None:
    """With the same roles and hosts, and a new key."""
    files = TlsFiles(tmp_path)
    path = files.path(Role.SAFEKEEPER, "3", hosts=("h3", "10.0.0.3"))
    first, content = show(path), Path(path).read_text()
    assert not first.is_due(NOW + datetime.timedelta(days=59))
    assert first.is_due(NOW + datetime.timedelta(days=61))
    command = ["certs", "renew", "--dir", str(tmp_path / "ca"), path]
    assert run(command) == 0
    assert Path(path).read_text() == content
    assert run([*command, "--all"]) == 0
    second = show(path)
    assert (second.uris, second.hosts) == (first.uris, first.hosts)
    key, renewed = (text.partition("-----END")[0] for text in (content, Path(path).read_text()))
    assert key != renewed


def test_a_file_trusts_both_authorities_while_they_change(tmp_path: Path) -> None:
    """`renew` dropped the new one of a file that was due, and so cut it off from its peers."""
    files, other = TlsFiles(tmp_path), tmp_path / "other"
    path = files.path(Role.SAFEKEEPER, "3", hosts=("h3",))
    Authority.create(str(other), NOW)
    past = Authority.create(str(tmp_path / "past"), NOW - datetime.timedelta(days=3651))
    both = [(tmp_path / "ca" / CA_CERTIFICATE).read_text(), (other / CA_CERTIFICATE).read_text()]
    ended = (tmp_path / "past" / CA_CERTIFICATE).read_text()
    assert past is not None
    with Path(path).open("a") as file:
        file.write(both[1] + ended)
    assert run(["certs", "revoke", "--dir", str(tmp_path / "ca"), "F" * 20]) == 0
    renew = ["certs", "renew", path, "--all", "--dir"]
    assert run([*renew, str(tmp_path / "ca")]) == 0
    assert all(ca in Path(path).read_text() for ca in both), "as long as both are in use"
    assert run([*renew, str(other)]) == 0
    text = Path(path).read_text()
    assert all(ca in text for ca in both) and "X509 CRL" in text and ended not in text
    assert show(path).hosts == ("h3",) and Credentials(path).own_identity().safekeeper_id == 3
    assert run([*renew[:3], "--only-own-ca", "--dir", str(other)]) == 2
    assert run([*renew, str(other), "--only-own-ca"]) == 0
    text = Path(path).read_text()
    assert both[1] in text and both[0] not in text and "X509 CRL" not in text
    assert Credentials(path).own_identity().safekeeper_id == 3


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.pem"
    path.write_text("no certificate")
    with pytest.raises(Refused, match=r"text\.pem is no TLS file"):
        show(str(path))
