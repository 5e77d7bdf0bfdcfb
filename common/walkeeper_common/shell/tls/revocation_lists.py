"""The lists of revoked certificates in a TLS file: PEM blocks `X509 CRL` of the CAs in it.

    lists = RevocationLists.of(parse_lists(pem), authorities, names)   raises Refused
    lists.check(certificate)                                           raises Revoked

The handshake has verified a certificate before `check` looks it up by issuer and serial number.
OpenSSL is not asked for it, since it refuses every peer once a list has ended or a CA has none
(docs/adr/0053-look-up-revoked-certificates-by-serial-number.md). This module looks at no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from walkeeper_common.errors import Refused

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateRevocationList

REVOKED_MAX: Final = 100_000  # a list of this length takes 150 ms to load
BEGIN: Final = b"-----BEGIN X509 CRL-----"
_BLOCK: Final = re.compile(BEGIN + rb".*?-----END X509 CRL-----\r?\n?", re.DOTALL)

# A distinguished name as ssl's getpeercert() has it.
Name = tuple[tuple[tuple[str, str], ...], ...]


class Revoked(Refused):
    """The issuer has revoked the peer's certificate."""


@dataclass(frozen=True, slots=True)
class ListEnd:
    """The time by which an authority was to publish its next list, in Unix time."""

    authority: str
    end_s: float


@dataclass(frozen=True, slots=True)
class RevocationLists:
    """The newest list of each authority of one file."""

    revoked: Mapping[tuple[Name, int], datetime] = field(default_factory=dict)
    ends: tuple[ListEnd, ...] = ()

    @classmethod
    def of(
        cls,
        lists: Iterable[CertificateRevocationList],
        authorities: Sequence[Certificate],
        names: Sequence[Name],
    ) -> RevocationLists:
        """Return the lists of a file with these authorities, whose names ssl has in this form.

        A list needs an authority of the file: nobody else could tell whether it is genuine.
        """
        newest: dict[int, CertificateRevocationList] = {}
        for found in lists:
            number = _signer(found, authorities)
            known = newest.get(number)
            if known is None or known.last_update_utc <= found.last_update_utc:
                newest[number] = found
        revoked = {
            (names[number], each.serial_number): each.revocation_date_utc
            for number, found in newest.items()
            for each in found
        }
        ends = tuple(
            ListEnd(found.issuer.rfc4514_string(), found.next_update_utc.timestamp())
            for found in newest.values()
            if found.next_update_utc is not None
        )
        return cls(revoked, ends)

    def check(self, certificate: Mapping[str, Any]) -> None:
        """Raise Revoked if this verified certificate of getpeercert() is in a list."""
        if not self.revoked or not certificate:
            return
        serial = int(certificate["serialNumber"], 16)
        since = self.revoked.get((certificate["issuer"], serial))
        if since is None:
            return
        names = certificate.get("subjectAltName", ())
        uris = ", ".join(value for kind, value in names if kind == "URI")
        raise Revoked(
            f"the certificate {serial:X} of {uris or 'no identity'} was revoked at "
            f"{since:%Y-%m-%d %H:%M} UTC: give its owner a new file with walkeeper certs"
        )


def parse_lists(pem: bytes) -> Iterator[CertificateRevocationList]:
    """Yield the lists among the blocks of a file, not yet verified; raise Refused for a bad one."""
    from cryptography.x509 import load_pem_x509_crl

    blocks = _BLOCK.findall(pem)
    if len(blocks) != pem.count(BEGIN):
        raise Refused("a list of revoked certificates is cut off: copy it again")
    for block in blocks:
        try:
            found = load_pem_x509_crl(block)
            flaw = _flaw(found)
        except ValueError as error:
            raise Refused(
                f"a list of revoked certificates is damaged: {error}; copy it again"
            ) from error
        if flaw:
            raise Refused(f"a list of revoked certificates is not usable: {flaw}")
        yield found


def without_lists(pem: bytes) -> bytes:
    """Return the other blocks of the file."""
    return _BLOCK.sub(b"", pem)


def _flaw(found: CertificateRevocationList) -> str:
    """Return why a list's serial numbers are not all that it revokes, or ""."""
    from cryptography.x509 import IssuingDistributionPoint

    for extension in found.extensions:
        if isinstance(extension.value, IssuingDistributionPoint):
            if extension.value.indirect_crl:
                return "it has certificates of several authorities; get one list of each"
        elif extension.critical:
            return (
                f"it has the critical extension {extension.oid.dotted_string}, as a delta list "
                "has; get the whole list"
            )
    if len(found) > REVOKED_MAX:
        return f"it has more than {REVOKED_MAX} certificates"
    return ""


def _signer(found: CertificateRevocationList, authorities: Sequence[Certificate]) -> int:
    """Return the number of the authority that has signed the list; raise Refused if none has."""
    for number, authority in enumerate(authorities):
        if authority.subject == found.issuer and has_signed_list(authority, found):
            return number
    issuer = found.issuer.rfc4514_string()
    raise Refused(
        f"a list of revoked certificates is signed by no CA of the file: {issuer}; add that CA, "
        "or take the list out"
    )


def has_signed_list(authority: Certificate, found: CertificateRevocationList) -> bool:
    """Return whether this authority's key has signed the list."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        return found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False  # the key is of a kind that signs nothing
