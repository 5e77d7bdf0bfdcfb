"""The check of certificates: this command's, its authorities', and each safekeeper's. A shell.

It also looks at the lists of revoked certificates in the command's TLS file.

    from_certificates(addresses, names, timeout_s) -> findings     with this process's TLS file
    graded(certificates, now_s) -> finding                         pure

Each safekeeper shows its certificate in the TLS handshake, whatever its version.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_admin.check.finding import Finding, Grade, ok
from walkeeper_common.addresses import Address
from walkeeper_common.shell.safekeeper_links.safekeeper_socket import connect
from walkeeper_common.shell.tls.credentials import WARN_BEFORE_S
from walkeeper_common.shell.tls.own_credentials import own_credentials

CHECK = "certificates"
DAY_S = 86400
EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
RENEW = "walkeeper certs renew --dir ca FILE, and copy the file to its machine; docs/tls.md#renewal"
REPLACE_CA = "change the authority: docs/tls.md#renewal"
NEW_LIST = "put a newer list into each TLS file; docs/tls.md#a-stolen-file"
REFUSED = "a peer with an expired certificate is refused: its commits and reads stop"
STILL_ADMITTED = "certificates that were revoked since then still come in"
TAKE_OUT = "take this authority out of every file; docs/tls.md#renewal"


@dataclass(frozen=True, slots=True)
class SeenCertificate:
    """A certificate, or with `is_list` a list of revoked ones, and when it ends (Unix time).

    `end_s` None is a time in the past that is not known. If `in_use` is False, no connection
    depends on it, so its end stops nothing.
    """

    owner: str
    end_s: float | None
    remedy: str = RENEW
    in_use: bool = True
    is_list: bool = False

    @property
    def subject(self) -> str:
        return f"{'the list of revoked ones' if self.is_list else 'that'} of {self.owner}"


async def from_certificates(
    addresses: Sequence[Address], names: Sequence[str], timeout_s: float
) -> list[Finding]:
    """Return the finding. Without a TLS file no certificate is looked at, and it is OK."""
    credentials = own_credentials()
    if credentials is None:
        return [ok(CHECK, "none is looked at, as this command has no --tls FILE")]
    own = SeenCertificate("this command", credentials.end_s)
    authorities = [
        SeenCertificate(f"the CA {each.name}", each.end_s, REPLACE_CA, in_use=True)
        if each.is_own
        else SeenCertificate(f"another CA {each.name}", each.end_s, TAKE_OUT, in_use=False)
        for each in credentials.authorities()
    ]
    now_s = time.time()
    old_lists = [
        SeenCertificate(each.authority, each.end_s, NEW_LIST, in_use=False, is_list=True)
        for each in credentials.list_ends
        if each.end_s <= now_s  # a list of a week is no reason for a warning
    ]
    pairs = zip(addresses, names, strict=True)
    asked = (asyncio.to_thread(_of_safekeeper, *pair, timeout_s) for pair in pairs)
    members = [found for found in await asyncio.gather(*asked) if found is not None]
    return [graded([own, *authorities, *old_lists, *members], now_s)]


def _of_safekeeper(address: Address, name: str, timeout_s: float) -> SeenCertificate | None:
    """Return the certificate that the safekeeper shows, or None if the connection fails.

    Other checks report a failed connection.
    """
    try:
        connection, _ = connect(address, timeout_s)
    except OSError as error:
        cause = error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code == EXPIRED:
            return SeenCertificate(name, None)
        return None
    with connection:
        assert isinstance(connection, ssl.SSLSocket), f"{connection=}"
        shown = connection.getpeercert() or {}
    return SeenCertificate(name, float(ssl.cert_time_to_seconds(str(shown["notAfter"]))))


def graded(certificates: Sequence[SeenCertificate], now_s: float) -> Finding:
    """Return FAILED for an expired certificate, and WARNING for one that ends soon."""
    grades = {each: _grade(each, now_s) for each in certificates}
    worst = max(grades.values())
    shown = [each for each in certificates if grades[each] is worst]
    text = "; ".join(_shown(each, now_s) for each in shown)
    if worst is Grade.OK:
        return ok(CHECK, text)
    why = REFUSED if any(not each.is_list for each in shown) else STILL_ADMITTED
    remedies = dict.fromkeys(each.remedy for each in shown)
    return Finding(CHECK, worst, text, why, "; ".join(remedies))


def _grade(certificate: SeenCertificate, now_s: float) -> Grade:
    end_s = certificate.end_s
    if end_s is None or end_s <= now_s:
        return Grade.FAILED if certificate.in_use else Grade.WARNING
    return Grade.WARNING if end_s - now_s < WARN_BEFORE_S else Grade.OK


def _shown(certificate: SeenCertificate, now_s: float) -> str:
    end_s = certificate.end_s
    if end_s is None:
        return f"{certificate.subject} has expired"
    date = time.strftime("%Y-%m-%d", time.gmtime(end_s))
    if end_s <= now_s:
        return f"{certificate.subject} expired on {date}"
    return f"{certificate.subject} ends in {(end_s - now_s) / DAY_S:.0f} days, on {date}"
