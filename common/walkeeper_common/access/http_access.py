"""The rules by which a daemon's --http lets a request in, without a server. Pure.

    HttpAccess(tokens, host, …).refusal(host=…, authorization=…, identity=…)

Over TLS a certificate of a monitor or an administrator lets a client in. The routes that a daemon
adds show contents of tables, so a monitor does not read them. A token lets a client in always.
Without tokens and TLS all may read, and the Host header has to be an address or a name of this
machine. A page of another site could otherwise give its own name our address (DNS rebinding), and
read the answers in a user's browser. A client that proves who it is may call us as it likes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from walkeeper_common.access.identity import NOBODY, Identity, Role
from walkeeper_common.errors import Refused

TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX, TOKENS_MAX = 16, 512, 16
READERS = frozenset((Role.MONITOR, Role.ADMIN))
CONTENT_READERS = frozenset((Role.PAGER, Role.ADMIN))  # these may read all WAL as well
# Each is a header of its own, since Chromium finds no question after a comma.
CHALLENGES = ('Basic realm="walkeeper", charset="UTF-8"', "Bearer")


@dataclass(frozen=True, slots=True)
class HttpRefusal:
    """An answer to a request that is not let in; `reason` is for the audit."""

    status: int
    reason: str
    text: str


WRONG_HOST = HttpRefusal(
    421,
    "host",
    "this name is none of the daemon's: use its address, or give it a token with --http-token",
)
NO_TOKEN = HttpRefusal(
    401,
    "token",
    "a token is missing or wrong: send the one of --http-token as Authorization: Bearer, or as the "
    "password of a browser's question; with --http-tls a certificate does as well, of a monitor, "
    "and of a pager for its pages",
)


# The peer of a request that is let in by a token. Its owner has no other name.
BEARER = Identity(
    name="token", roles=READERS | CONTENT_READERS, clusters=None, safekeeper_id=None, how="token"
)


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The rules of one daemon, which listens on `host`."""

    tokens: Sequence[str]
    host: str
    takes_certificates: bool = False
    readers: frozenset[Role] = READERS

    def proven(self, identity: Identity) -> Identity | None:
        """Return the identity behind a request that is let in, or None if it proves none."""
        if self.takes_certificates and identity.roles & self.readers:
            return identity
        return BEARER if self.tokens or self.takes_certificates else None

    def refusal(
        self, *, host: str, authorization: str, identity: Identity = NOBODY
    ) -> HttpRefusal | None:
        """Return why the request is not let in, or None. The texts are those of two headers."""
        if self.takes_certificates and identity.roles & self.readers:
            return None
        if not (self.tokens or self.takes_certificates):
            return None if self._is_own(host) else WRONG_HOST
        given = _token_of(authorization)
        # Compare with all tokens in the same time, so that the answer does not show a near guess.
        right = sum([hmac.compare_digest(_digest(given), _digest(each)) for each in self.tokens])
        return None if given and right else NO_TOKEN

    def _is_own(self, header: str) -> bool:
        name = header.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") <= 1:
            name = name.partition(":")[0]
        try:
            ip_address(name)
        except ValueError:
            # A name without a dot is resolved by this machine's network alone, as `localhost` is.
            return bool(name) and ("." not in name or name == self.host.lower())
        return True


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _token_of(authorization: str) -> str:
    """Return the token of a header: a bearer's, or the password of a browser."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def parse_tokens(text: str) -> tuple[str, ...]:
    """Return the tokens, one a line; raise Refused, without a token, if there is no good one."""
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not 0 < len(tokens) <= TOKENS_MAX:
        raise Refused(f"it has {len(tokens)} tokens: write 1 to {TOKENS_MAX}, one a line")
    for number, token in enumerate(tokens, 1):
        is_sound = TOKEN_LENGTH_MIN <= len(token) <= TOKEN_LENGTH_MAX
        if not is_sound or not token.isascii() or not token.isprintable() or " " in token:
            raise Refused(
                f"token {number} is not {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX} printable ASCII "
                "characters without a space: make one with openssl rand -hex 32"
            )
    return tokens
