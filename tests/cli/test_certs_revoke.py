"""`walkeeper certs revoke`: the authority's list, and how it comes into the files."""

from __future__ import annotations

import datetime
import subprocess
import time
from pathlib import Path

import pytest
from cryptography import x509

from tests.common.test_revocation_lists import made_list, with_text
from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import AUTHORITY_DAYS, CA_CERTIFICATE, CA_LIST, Authority, show
from walkeeper_cli.certs.issued_certificates import RECORD
from walkeeper_cli.certs.local_files import local_tls
from walkeeper_cli.program import run
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls.credentials import Credentials

DAY = datetime.timedelta(days=1)


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def listed(path: Path | str) -> set[int]:
    """Return the serial numbers in the last list of a file."""
    text = Path(path).read_text()
    _, begin, block = text.rpartition("-----BEGIN X509 CRL")
    return {each.serial_number for each in x509.load_pem_x509_crl((begin + block).encode())}


def revoke(tmp_path: Path, *names: str) -> int:
    return run(["certs", "revoke", "--dir", str(tmp_path / "ca"), *names])


def test_all_valid_certificates_of_a_name_are_revoked(
    tmp_path: Path, files: TlsFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thief may have the file of before the renewal."""
    path = files.path(Role.ADMIN, "alice")
    old = show(path).serial
    new = files.authority.renew(path).serial
    files.path(Role.ADMIN, "bob")
    past = Authority(str(tmp_path / "ca"), NOW - 91 * DAY)
    past.issue(str(tmp_path / "past.pem"), ["walkeeper://*/admin/alice"], ())
    assert revoke(tmp_path, "alice") == 0
    assert listed(tmp_path / "ca" / CA_LIST) == {old, new}
    said = capsys.readouterr().out
    assert said.count("walkeeper://*/admin/alice") == 2 and "certs renew" in said
    assert run(["certs", "show", "--dir", str(tmp_path / "ca")]) == 0
    assert f"revokes {new:X} of walkeeper://*/admin/alice since" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["safekeeper/1", "*/safekeeper/1"])
def test_a_role_tells_two_owners_of_one_name_apart(
    tmp_path: Path, files: TlsFiles, name: str
) -> None:
    safekeeper, replica = files.path(Role.SAFEKEEPER, "1"), files.path(Role.REPLICA, "1")
    assert revoke(tmp_path, name) == 0
    assert listed(tmp_path / "ca" / CA_LIST) == {show(safekeeper).serial}
    assert revoke(tmp_path, "1") == 0
    assert listed(tmp_path / "ca" / CA_LIST) == {show(safekeeper).serial, show(replica).serial}


def test_a_file_and_a_serial_number_name_a_certificate_of_before_the_record(
    tmp_path: Path, files: TlsFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = files.path(Role.ADMIN, "alice"), files.path(Role.ADMIN, "bob")
    (tmp_path / "ca" / RECORD).unlink()
    assert run(["certs", "show", two]) == 0
    serial = capsys.readouterr().out.split("serial ")[1].strip()
    pairs = ":".join(f"{show(two).serial:040X}"[at : at + 2] for at in range(0, 40, 2))
    assert revoke(tmp_path, one, serial) == 0
    assert listed(tmp_path / "ca" / CA_LIST) == {show(one).serial, show(two).serial}
    capsys.readouterr()
    assert revoke(tmp_path, pairs) == 0 and "revoked already" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["nobody", "lice", "12", "stranger"])
def test_nothing_is_revoked_if_one_name_is_wrong(
    tmp_path: Path, files: TlsFiles, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files.path(Role.ADMIN, "alice")
    if wrong == "stranger":
        wrong = TlsFiles(tmp_path / "other").path(Role.ADMIN, "alice")
    assert revoke(tmp_path, "alice", wrong) == 1
    said = capsys.readouterr().err
    assert "another authority" in said or "no serial number" in said
    assert not (tmp_path / "ca" / CA_LIST).exists()


def test_a_damaged_record_is_named_and_a_serial_number_still_helps(
    tmp_path: Path, files: TlsFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files.path(Role.ADMIN, "alice")
    with_text(str(tmp_path / "ca" / RECORD), "3F 2027-0")
    assert revoke(tmp_path, "alice") == 1
    assert "damaged line" in capsys.readouterr().err
    assert revoke(tmp_path, path) == 0


def test_renewed_and_new_files_have_the_list_and_files_that_are_not_due_get_it(
    tmp_path: Path, files: TlsFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other = files.path(Role.SAFEKEEPER, "1"), files.path(Role.SAFEKEEPER, "2")
    key = Path(other).read_text()
    assert revoke(tmp_path, "safekeeper/1") == 0
    stolen = listed(tmp_path / "ca" / CA_LIST)
    renew = ["certs", "renew", "--dir", str(tmp_path / "ca")]
    assert run([*renew, "--all", own]) == 0 and run([*renew, other]) == 0
    new = files.path(Role.ADMIN, "alice")
    for path in (own, other, new):
        assert listed(path) == stolen
        Credentials(path).check({})
    assert Path(other).read_text().startswith(key), "the same key and certificate"
    assert run([*renew, other]) == 0
    assert Path(other).read_text().count("BEGIN X509 CRL") == 1
    capsys.readouterr()
    assert run(["certs", "show", other]) == 0
    assert f"{other}: revokes {stolen.pop():X} since" in capsys.readouterr().out


def test_a_list_that_the_authority_has_lost_stays_in_the_files(
    tmp_path: Path, files: TlsFiles
) -> None:
    """A backup of the authority's directory may be older than the list."""
    own = files.path(Role.SAFEKEEPER, "1")
    files.path(Role.ADMIN, "alice")
    assert revoke(tmp_path, "alice") == 0
    stolen = listed(tmp_path / "ca" / CA_LIST)
    files.authority.refresh(own)
    (tmp_path / "ca" / CA_LIST).unlink()
    later = Authority(str(tmp_path / "ca"), NOW + 61 * DAY)
    files.authority.refresh(own)
    assert listed(own) == stolen
    later.refresh(own)
    assert show(own).begins > NOW and listed(own) == stolen


def test_the_list_of_another_authority_stays_beside_the_own_one(
    tmp_path: Path, files: TlsFiles
) -> None:
    """Both authorities are in the file while one takes the other's place."""
    TlsFiles(tmp_path / "other")
    own, ca = files.path(Role.SAFEKEEPER, "1"), tmp_path / "other" / "ca"
    with_text(own, (ca / CA_CERTIFICATE).read_text() + made_list(ca, 7))
    files.path(Role.ADMIN, "alice")
    assert revoke(tmp_path, "alice") == 0
    files.authority.refresh(own)
    text = Path(own).read_text()
    assert text.count("BEGIN X509 CRL") == 2 and text.count("BEGIN CERTIFICATE") == 3
    assert len(Credentials(own).list_ends) == 2


def test_up_gives_its_files_the_list(tmp_path: Path) -> None:
    tls = local_tls(tmp_path)
    stolen = show(tls.replica).serial
    assert revoke(tmp_path, "replica") == 0
    local_tls(tmp_path)
    for path in (*tls.safekeepers.values(), tls.proposer, tls.admin):
        assert listed(path) == {stolen}


def test_openssl_believes_the_list_for_as_long_as_the_authority(
    tmp_path: Path, files: TlsFiles
) -> None:
    thief, honest = files.path(Role.ADMIN, "alice"), files.path(Role.ADMIN, "bob")
    for _ in range(2):
        assert revoke(tmp_path, "alice") == 0
    ca = tmp_path / "ca"
    at = int((NOW + datetime.timedelta(days=AUTHORITY_DAYS - 1)).timestamp())

    def verified(path: str, when: int) -> str:
        words = ["openssl", "verify", "-crl_check_all", "-attime", str(when)]
        lists = ["-CAfile", str(ca / CA_CERTIFICATE), "-CRLfile", str(ca / CA_LIST)]
        done = subprocess.run([*words, *lists, path], capture_output=True, text=True)
        return done.stdout + done.stderr

    now = int(time.time()) + 1  # NOW is from before the list
    assert "revoked" in verified(thief, now) and verified(honest, now).endswith(": OK\n")
    assert "CRL has expired" not in verified(honest, at)


def test_a_revocation_after_a_loss_of_the_list_frees_nobody(
    tmp_path: Path, files: TlsFiles
) -> None:
    """The list of a restored authority was newer, and took the place of one with more in it."""
    own, first = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    second = files.path(Role.ADMIN, "bob")
    assert revoke(tmp_path, "alice") == 0
    files.authority.refresh(own)
    (tmp_path / "ca" / CA_LIST).unlink()
    assert revoke(tmp_path, "bob") == 0
    files.authority.refresh(own)
    stolen = {show(first).serial, show(second).serial}
    assert listed(own) == stolen
    assert listed(tmp_path / "ca" / CA_LIST) == stolen, "the next file gets it as well"
    files.authority.renew(own)
    assert listed(own) == stolen
