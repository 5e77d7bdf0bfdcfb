"""A certificate authority in a directory, and the TLS files of daemons and operators.

    ca.key, ca.pem     the authority: keep them beside the administrator, on no safekeeper
    crl.pem            the list of revoked certificates, from the first one on
    issued.txt         a line for each certificate: serial number, end of validity, URIs
    <name>.pem         one daemon's file: its private key, its certificate, the CA, the list

Keys are of P-256. The authority is valid for ten years, a certificate for 90 days. `renew` makes
a new key and certificate with the names and roles of the old file. Other authorities that the old
file trusts stay in it, so that the authority can be changed. A file is replaced at once and whole,
with mode 0600. The list is valid as long as the authority: nobody has to publish it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from walkeeper_cli.certs.issued_certificates import Issued, IssuedCertificates
from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import Identity
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.private_file import write_private
from walkeeper_common.shell.tls.revocation_lists import (
    has_signed_list,
    parse_lists,
    without_lists,
)

AUTHORITY_DAYS = 3650
LEAF_DAYS = 90
CLOCK_SKEW = timedelta(minutes=5)  # a safekeeper's clock may be behind this one
RENEW_AFTER = 2 / 3  # a share of the validity
CA_KEY, CA_CERTIFICATE, CA_LIST = "ca.key", "ca.pem", "crl.pem"

SERIAL = re.compile(r"(?:[0-9A-Fa-f]:?){16,60}")

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Shown:
    """One TLS file, for `walkeeper certs show` and `renew`."""

    path: str
    identity: Identity
    uris: tuple[str, ...]
    hosts: tuple[str, ...]
    begins: datetime
    ends: datetime
    serial: int

    def is_due(self, now: datetime) -> bool:
        """Return True after two thirds of the validity."""
        return now >= self.begins + (self.ends - self.begins) * RENEW_AFTER


class Authority:
    """The authority in `directory`; raises Refused if it is not there or not usable."""

    def __init__(self, directory: str, now: datetime) -> None:
        self._directory, self._now = directory, now
        self._issued = IssuedCertificates(directory)
        key = serialization.load_pem_private_key(self._read(CA_KEY), password=None)
        assert isinstance(key, Key), f"{key=}"
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(self._read(CA_CERTIFICATE))

    def _read(self, name: str) -> bytes:
        path = os.path.join(self._directory, name)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise Refused(
                f"there is no certificate authority in {self._directory}: {path}: "
                f"{error.strerror}; make one with walkeeper certs init"
            ) from error

    @classmethod
    def create(cls, directory: str, now: datetime) -> Authority:
        """Make a new authority; raise Refused if there is one, as its files would be worthless."""
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if os.path.lexists(os.path.join(directory, CA_KEY)):
            raise Refused(f"{directory} has a certificate authority already; choose another --dir")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "walkeeper CA")])
        certificate = (
            _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        write_private(os.path.join(directory, CA_KEY), _pem(key))
        write_private(os.path.join(directory, CA_CERTIFICATE), _public_pem(certificate))
        return cls(directory, now)

    def issue(
        self, path: str, uris: Sequence[str], hosts: Sequence[str], *,
        in_place_of: bytes = b"", others: Sequence[x509.Certificate] = (),
    ) -> Shown:  # fmt: skip
        """Write a TLS file with these roles, valid at these hosts; return what it has.

        It trusts `others`, too, and has their lists of the file that it replaces.
        """
        identity_of_certificate({"subjectAltName": [("URI", uri) for uri in uris]})
        key = ec.generate_private_key(ec.SECP256R1())
        common_name = uris[0].rpartition("://")[2]
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [_host_name(host) for host in hosts]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
        issuer_key = self._key.public_key()
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), self._now, LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_purposes(hosts)), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        end_s = int(certificate.not_valid_after_utc.timestamp())
        self._issued.add(Issued(certificate.serial_number, end_s, tuple(uris)))
        chain = [certificate, self._certificate, *others]
        lists = [
            each
            for each in parse_lists(in_place_of)
            if any(has_signed_list(other, each) for other in others)
        ]
        pem = _pem(key) + b"".join(map(_public_pem, chain))
        write_private(path, pem + _list_pem([*lists, self._newest_list(in_place_of)]))
        return show(path)

    def renew(self, path: str, *, only_own: bool = False) -> Shown:
        """Replace the file by one with a new key and the same roles and hosts.

        With `only_own`, it trusts no other authority any more.
        """
        old = show(path)
        pem = _read_file(path)
        others = [] if only_own else self._others_of(pem)
        return self.issue(path, old.uris, old.hosts, in_place_of=pem, others=others)

    def refresh(self, path: str) -> Shown:
        """Renew the file if it is due; give it the authority's list otherwise."""
        if show(path).is_due(self._now):
            return self.renew(path)
        pem = _read_file(path)
        others = [each for each in parse_lists(pem) if not self._has_signed(each)]
        refreshed = without_lists(pem) + _list_pem([*others, self._newest_list(pem)])
        if refreshed != pem:
            write_private(path, refreshed)
        return show(path)

    def revoke(self, names: Sequence[str]) -> list[Issued]:
        """Add certificates to the list; return those that it did not have. Raise Refused.

        A name is a TLS file, the end of a URI of `issued.txt` (`alice`, `safekeeper/1`), or a
        serial number. The list stays as it is if one of the names is none of these.
        """
        chosen = {each.serial: each for name in names for each in self._chosen(name)}
        listed = list(self._list() or ())
        known = {each.serial_number for each in listed}
        new = [each for each in chosen.values() if each.serial not in known]
        if new:
            self._publish([*listed, *(_entry(each.serial, self._now) for each in new)])
        return new

    def revoked(self) -> list[tuple[Issued, datetime]]:
        """Return the revoked certificates, with their URIs if they are known, and their times."""
        known = {each.serial: each for each in self._issued.read()}
        return [
            (known.get(each.serial_number, Issued(each.serial_number)), each.revocation_date_utc)
            for each in self._list() or ()
        ]

    def _chosen(self, name: str) -> list[Issued]:
        if os.path.isfile(name):
            return [self._own(name)]
        found = [
            each
            for each in self._issued.read()
            if each.is_valid(self._now.timestamp())
            and any(f"/{uri}".endswith(f"/{name}") for uri in each.uris)
        ]
        if not found and SERIAL.fullmatch(name):
            found = [Issued(int(name.replace(":", ""), 16))]
        if not found:
            raise Refused(
                f"{name!r} is no file, no name of a certificate that was issued in "
                f"{self._directory} and is valid, and no serial number; walkeeper certs show FILE "
                "has the serial number"
            )
        return found

    def _own(self, path: str) -> Issued:
        shown = show(path)
        leaf = x509.load_pem_x509_certificates(_read_file(path))[0]
        try:
            leaf.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise Refused(f"{path} is of another authority than {self._directory}") from error
        return Issued(shown.serial, int(shown.ends.timestamp()), shown.uris)

    def _list(self) -> x509.CertificateRevocationList | None:
        path = os.path.join(self._directory, CA_LIST)
        return next(parse_lists(_read_file(path))) if os.path.lexists(path) else None

    def _others_of(self, pem: bytes) -> list[x509.Certificate]:
        """Return the other authorities that a file trusts and that have not ended."""
        found = x509.load_pem_x509_certificates(pem)[1:]
        return [c for c in found if c != self._certificate and c.not_valid_after_utc > self._now]

    def _newest_list(self, pem: bytes) -> x509.CertificateRevocationList | None:
        """Return this authority's list, or None if it has revoked no certificate.

        A file may have more in its list, as after a restore of the authority. The authority takes
        that over: its next list would be newer, and would free what the file's has revoked.
        """
        listed = list(self._list() or ())
        known = {each.serial_number for each in listed}
        found = (each for one in parse_lists(pem) if self._has_signed(one) for each in one)
        lost = {each.serial_number: each for each in found if each.serial_number not in known}
        if lost:
            self._publish([*listed, *lost.values()])
        return self._list()

    def _has_signed(self, found: x509.CertificateRevocationList) -> bool:
        return has_signed_list(self._certificate, found)

    def _publish(self, revoked: Sequence[x509.RevokedCertificate]) -> None:
        """Replace the list by one of these certificates, with the next number."""
        old, issuer = self._list(), self._certificate
        number = 0 if old is None else _number(old)
        builder = (
            x509.CertificateRevocationListBuilder(revoked_certificates=list(revoked))
            .issuer_name(issuer.subject)
            .last_update(self._now - CLOCK_SKEW)
            .next_update(issuer.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number + 1), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        content = _list_pem([builder.sign(self._key, hashes.SHA256())])
        write_private(os.path.join(self._directory, CA_LIST), content)


def show(path: str) -> Shown:
    """Return what a TLS file states; raise Refused if it is none."""
    pem = _read_file(path)
    try:
        leaf = x509.load_pem_x509_certificates(pem)[0]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise Refused(f"{path} is no TLS file of walkeeper certs: {error}") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    hosts = [
        str(name.value) for name in names if not isinstance(name, x509.UniformResourceIdentifier)
    ]
    return Shown(
        path=path,
        identity=identity_of_certificate({"subjectAltName": [("URI", uri) for uri in uris]}),
        uris=tuple(uris),
        hosts=tuple(hosts),
        begins=leaf.not_valid_before_utc,
        ends=leaf.not_valid_after_utc,
        serial=leaf.serial_number,
    )


def revoked_in(path: str) -> list[tuple[int, datetime]]:
    """Return the serial numbers in the lists of a file, each with its time; raise Refused."""
    lists = parse_lists(_read_file(path))
    return [(each.serial_number, each.revocation_date_utc) for found in lists for each in found]


def _entry(serial: int, now: datetime) -> x509.RevokedCertificate:
    return x509.RevokedCertificateBuilder(serial, now).build()


def _list_pem(lists: Sequence[x509.CertificateRevocationList | None]) -> bytes:
    encoding = serialization.Encoding.PEM
    return b"".join(each.public_bytes(encoding) for each in lists if each is not None)


def _number(of: x509.CertificateRevocationList) -> int:
    return of.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _purposes(hosts: Sequence[str]) -> list[x509.ObjectIdentifier]:
    """Return the purposes: all are clients, and a daemon that has a host is a server, too."""
    server = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
    return [ExtendedKeyUsageOID.CLIENT_AUTH, *server]


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise Refused(f"{host!r} cannot be a host's name: {error}") from error


def _pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
