"""URLs and connection strings without their secrets, for logs, status and messages. Pure.

    shown_url("https://user:pw@h/b?sig=x")    https://***@h/b?***

A name and a password before the host count as secret. So do the values of a query, one of which
may be a shared access signature, and a fragment.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

HIDDEN = "***"
SECRET_CHARACTERS_MIN = 3  # shorter ones are in every text

_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?P<rest>.*)", re.DOTALL)
_SECRET_WORDS = re.compile(
    r"""(?:password|passphrase|sslpassword|secret\w*|token|sig|signature|key)
        \s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s'&]+))""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def shown_url(url: str) -> str:
    """Return the URL with HIDDEN in place of its secrets; other texts are unchanged."""
    found = _URL.fullmatch(url)
    if found is None or found["scheme"].lower() == "file://":
        return url
    rest = found["rest"]
    rest, mark, _ = _cut(rest)
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    place = f"{HIDDEN}@{host}" if at and login else authority
    return f"{found['scheme']}{place}{slash}{path}{mark and mark + HIDDEN}"


def without_secrets(text: str, given: str) -> str:
    """Return a message about a URL or a connection string without the secrets of `given`."""
    text = text.replace(given, shown_url(given)) if given else text
    for secret in sorted(_secrets_of(given), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _cut(rest: str) -> tuple[str, str, str]:
    at = min((at for at in (rest.find("?"), rest.find("#")) if at >= 0), default=len(rest))
    return rest[:at], rest[at : at + 1], rest[at + 1 :]


def _secrets_of(given: str) -> set[str]:
    found = {value for pair in _SECRET_WORDS.findall(given) for value in pair}
    url = _URL.fullmatch(given)
    if url is not None:
        rest, _, tail = _cut(url["rest"])
        login, _, _ = rest.partition("/")[0].rpartition("@")
        found.add(login.partition(":")[2])
        if url["scheme"].lower() not in ("postgres://", "postgresql://"):
            found.add(login)
            found |= {pair.partition("=")[2] for pair in re.split("[&#]", tail)}
    found |= {unquote(secret) for secret in found}
    return {secret for secret in found if len(secret) >= SECRET_CHARACTERS_MIN}
