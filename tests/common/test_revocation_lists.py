"""Lists of revoked certificates: whom they name, how long, and which of them cannot be used."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from tests.common.test_tls_layer import shake_hands
from tests.support.tls_ends import pair
from tests.support.waiting import until
from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import CA_CERTIFICATE, CA_KEY, show
from walkeeper_common.access.identity import Role
from walkeeper_common.errors import Refused
from walkeeper_common.shell.tls import revocation_lists
from walkeeper_common.shell.tls.certificate_watch import watch_files
from walkeeper_common.shell.tls.credentials import Credentials
from walkeeper_common.shell.tls.own_credentials import own_libpq_parameters, use_credentials
from walkeeper_common.shell.tls.revocation_lists import Revoked

DAY = datetime.timedelta(days=1)
Builder = x509.CertificateRevocationListBuilder


@pytest.fixture(autouse=True)
def no_credentials() -> Iterator[None]:
    yield
    use_credentials(None)


def unchanged(builder: Builder) -> Builder:
    return builder


def made_list(
    directory: Path,
    *serials: int,
    begins: datetime.datetime = NOW,
    ends: datetime.datetime = NOW + DAY,
    change: Callable[[Builder], Builder] = unchanged,
) -> str:
    """Return a list as another program publishes it, in PEM."""
    key = load_pem_private_key((directory / CA_KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate((directory / CA_CERTIFICATE).read_bytes())
    entries = [x509.RevokedCertificateBuilder(each, begins).build() for each in serials]
    builder = Builder(issuer.subject, begins, ends, revoked_certificates=entries)
    return change(builder).sign(key, SHA256()).public_bytes(Encoding.PEM).decode()


def with_text(path: str, text: str) -> str:
    """Add text to a file, as an operator does with `cat`."""
    with open(path, "a") as file:
        file.write(text)
    return path


def checked(own: str, other: str) -> None:
    """Raise Revoked if a list of the own file has the certificate of the other one."""
    credentials = Credentials(own)
    server, client = pair(credentials.server_context(), Credentials(other).client_context())
    shake_hands(server, client)
    credentials.check(server.peer_certificate or {})


def test_the_certificate_in_a_list_is_refused_and_no_other_one(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    serial = show(thief).serial
    with_text(own, made_list(tmp_path / "ca", serial, serial + 1))
    with pytest.raises(Revoked, match=f"{serial:X} of walkeeper://.*/admin/alice was revoked at"):
        checked(own, thief)
    checked(own, files.path(Role.ADMIN, "bob"))
    files.authority.renew(thief)
    checked(own, thief)


def test_a_serial_number_is_that_of_its_issuer(tmp_path: Path) -> None:
    """Two authorities may count from one. The second one here has no list, and stops nobody."""
    files, others = TlsFiles(tmp_path), tmp_path / "other"
    other = TlsFiles(others)
    own, peer = files.path(Role.SAFEKEEPER, "1"), other.path(Role.ADMIN, "alice")
    with_text(own, (others / "ca" / CA_CERTIFICATE).read_text())
    with_text(peer, (tmp_path / "ca" / CA_CERTIFICATE).read_text())
    with_text(own, made_list(tmp_path / "ca", 1))
    checked(own, peer)
    credentials = Credentials(own)
    ours, theirs = ((("commonName", name),) for name in ("walkeeper CA", "another CA"))
    credentials.check({"issuer": (theirs,), "serialNumber": "01"})
    with pytest.raises(Revoked):
        credentials.check({"issuer": (ours,), "serialNumber": "01"})


def test_a_list_that_has_ended_stays_in_force_and_stops_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Replication must not stop in the night because a list was not replaced."""
    files = TlsFiles(tmp_path)
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    old = made_list(tmp_path / "ca", show(thief).serial, begins=NOW - 9 * DAY, ends=NOW - DAY)
    with_text(own, old)
    with pytest.raises(Revoked):
        checked(own, thief)
    assert "CN=walkeeper CA" in caplog.text and "still come in" in caplog.text
    checked(own, files.path(Role.ADMIN, "bob"))
    caplog.clear()
    Credentials(own).warn_of_end()
    assert "still come in" in caplog.text
    caplog.clear()
    checked(with_text(own, made_list(tmp_path / "ca")), thief)
    assert not caplog.text, "the newest list of an authority counts, and it has not ended"


@pytest.mark.parametrize("is_last", [True, False])
def test_the_newest_list_of_an_authority_counts(tmp_path: Path, is_last: bool) -> None:
    files = TlsFiles(tmp_path)
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    old = made_list(tmp_path / "ca", begins=NOW - DAY)
    new = made_list(tmp_path / "ca", show(thief).serial)
    with_text(own, old + new if is_last else new + old)
    with pytest.raises(Revoked):
        checked(own, thief)


def delta(builder: Builder) -> Builder:
    return builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)


def of_several(builder: Builder) -> Builder:
    names = [x509.UniformResourceIdentifier("http://ca.example/list")]
    point = x509.IssuingDistributionPoint(names, None, False, False, None, True, False)
    return builder.add_extension(point, critical=True)


def of_a_part(builder: Builder) -> Builder:
    names = [x509.UniformResourceIdentifier("http://ca.example/list")]
    point = x509.IssuingDistributionPoint(names, None, True, False, None, False, False)
    return builder.add_extension(point, critical=True)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda ca: made_list(ca)[:-30], "cut off"),
        (lambda ca: made_list(ca).replace("MII", "AAA").replace("\nMI", "\nAA"), "not usable"),
        (lambda ca: made_list(ca, change=delta), "delta list"),
        (lambda ca: made_list(ca, change=of_several), "several authorities"),
        (lambda ca: made_list(ca, *range(1, 12)), "more than 10"),
        (lambda ca: made_list(ca.parent / "other" / "ca"), "signed by no CA of the file"),
    ],
    ids=["cut off", "damaged", "delta", "indirect", "too long", "of a stranger"],
)
def test_a_list_that_is_not_usable_is_refused_at_the_start_and_leaves_the_former_file_in_force(
    tmp_path: Path,
    bad: Callable[[Path], str],
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revocation_lists, "REVOKED_MAX", 10)
    files, _ = TlsFiles(tmp_path), TlsFiles(tmp_path / "other")
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    with_text(own, made_list(tmp_path / "ca", show(thief).serial))
    running = Credentials(own)
    with_text(own, bad(tmp_path / "ca"))
    with pytest.raises(Refused, match=said):
        Credentials(own)
    server, client = pair(running.server_context(), Credentials(thief).client_context())
    assert "stays in use" in caplog.text and said in caplog.text
    shake_hands(server, client)
    with pytest.raises(Revoked):
        running.check(server.peer_certificate or {})


def test_a_list_of_a_part_of_the_certificates_counts(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    own, thief = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    with_text(own, made_list(tmp_path / "ca", show(thief).serial, change=of_a_part))
    with pytest.raises(Revoked):
        checked(own, thief)


def test_libpq_gets_the_list_only_where_it_would_not_refuse_all(tmp_path: Path) -> None:
    """libpq refuses each peer if a list has ended, or one of the authorities has none."""
    files = TlsFiles(tmp_path)

    def parameters(*lists: str) -> dict[str, str]:
        path = str(tmp_path / "new.pem")
        files.authority.issue(path, ["walkeeper://*/admin/alice"], ())
        use_credentials(with_text(path, "".join(lists)))
        return own_libpq_parameters()

    good, past = made_list(tmp_path / "ca"), made_list(tmp_path / "ca", ends=NOW - DAY / 24)
    TlsFiles(tmp_path / "other")
    other = (tmp_path / "other" / "ca" / CA_CERTIFICATE).read_text()
    assert parameters(good)["sslcrl"] == str(tmp_path / "new.pem")
    for lists in ((), (past,), (other, good)):
        assert "sslcrl" not in parameters(*lists), lists


def test_the_watch_warns_of_a_list_that_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    files = TlsFiles(tmp_path)
    own = files.path(Role.SAFEKEEPER, "1")
    use_credentials(with_text(own, made_list(tmp_path / "ca", ends=NOW - DAY / 24)))
    caplog.clear()

    async def story() -> None:
        watching = asyncio.create_task(watch_files(look_s=0.001))
        await until(lambda: "still come in" in caplog.text)
        watching.cancel()

    asyncio.run(story())
