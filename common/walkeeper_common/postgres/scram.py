"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, as PostgreSQL has it. Pure.

    Verifier.parse(text)                   what pg_authid.rolpassword holds; no password is in it
    StandIn.beside(verifiers).verifier     that of an unknown user, to which no password belongs
    ScramServer(…).begin, .finish          the two messages of a client, and their answers

The caller gives the nonce, so the exchange repeats. An unknown user costs the same steps as a known
one. Its salt is the same at each try, and on each safekeeper with the same users.

Sources: RFC 5802, RFC 7677, RFC 5929 (tls-server-end-point) and PostgreSQL's auth-scram.c.
Libraries for it, such as scramp, refuse the empty user name that libpq sends.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.postgres.pgwire import SqlRefused

PLAIN, PLUS = "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS"
BINDING = "tls-server-end-point"
KEY_BYTES, SALT_BYTES = 32, 16
ITERATIONS, ITERATIONS_MAX = 4096, 1 << 31
NONCE_BYTES = 18
MESSAGE_BYTES_MAX = 1024  # PG_MAX_SASL_MESSAGE_LENGTH

_VERIFIER = re.compile(r"SCRAM-SHA-256\$([0-9]{1,10}):([^:$]+)\$([^:$]+):([^:$]+)")
_FIRST = re.compile(r"n=[^,]*,r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]=[^,]*)*")
_FINAL = re.compile(r"(c=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-oq-z]=[^,]*)*),p=([^,]*)")


@dataclass(frozen=True, slots=True)
class Verifier:
    """Hold what a server knows of a password; `repr` shows nothing of it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Return the verifier; raise Refused, without the text, if it is none."""
        found = _VERIFIER.fullmatch(text)
        try:
            if found is None:
                raise ValueError
            salt, stored_key, server_key = (_decoded(each) for each in found.groups()[1:])
        except ValueError:
            raise Refused("it is no SCRAM-SHA-256 verifier, as pg_authid has them") from None
        iterations = int(found[1])
        is_sound = 0 < iterations < ITERATIONS_MAX and len(stored_key) == KEY_BYTES
        if not is_sound or len(server_key) != KEY_BYTES or not salt:
            raise Refused("it is a SCRAM-SHA-256 verifier with a part of a wrong length")
        return cls(iterations, salt, stored_key, server_key)

    def __str__(self) -> str:
        salt, stored, server = map(_encoded, (self.salt, self.stored_key, self.server_key))
        return f"{PLAIN}${self.iterations}:{salt}${stored}:{server}"

    def __repr__(self) -> str:
        return "Verifier(…)"


@dataclass(frozen=True, slots=True)
class StandIn:
    """The verifiers of names that are not among the users; each name has its own.

    They have the commonest cost and length of salt, since others would betray them. The first
    user's secret makes the salts, so they stay over a restart.
    """

    iterations: int
    salt_bytes: int
    secret: bytes

    @classmethod
    def beside(cls, verifiers: Sequence[Verifier]) -> StandIn:
        """Return the stand-in for all names that are not among these users."""
        shapes = Counter((each.iterations, len(each.salt)) for each in verifiers)
        (shape, _), *_ = [*shapes.most_common(1), ((ITERATIONS, SALT_BYTES), 0)]
        return cls(*shape, secret=verifiers[0].server_key if verifiers else b"")

    def verifier(self, name: str) -> Verifier:
        """Return a verifier without a known password, the same one at each try."""
        salt = b""
        while len(salt) < self.salt_bytes:
            salt += _hmac(self.secret, b"salt of nobody %d " % len(salt) + name.encode())
        return Verifier(
            self.iterations, salt[: self.salt_bytes], bytes(KEY_BYTES), bytes(KEY_BYTES)
        )


class ScramServer:
    """One login: `begin` with the first message of a client, then `finish` with its second.

    `verifier` is None for an unknown user, and `instead` then stands in. `end_point` is the hash of
    the certificate that this connection was served, or None without TLS.
    """

    def __init__(
        self,
        user: str,
        verifier: Verifier | None,
        instead: Verifier,
        *,
        nonce: bytes,
        end_point: bytes | None,
    ) -> None:
        self._user, self._is_known = user, verifier is not None
        self._verifier = verifier if verifier is not None else instead
        self._own_nonce, self._end_point = _encoded(nonce), end_point
        self._first, self._answer, self._nonce, self._binding = "", "", "", b""
        self._is_plus = False

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms to offer, the best first."""
        return (PLUS, PLAIN) if self._end_point is not None else (PLAIN,)

    def begin(self, mechanism: str, message: bytes) -> bytes:
        """Return the answer to the first message.

        Raise SqlRefused for what the server does not support, and RemoteProtocolError for a
        malformed message.
        """
        if mechanism not in self.mechanisms:
            raise RemoteProtocolError("client selected an invalid SASL authentication mechanism")
        self._is_plus = mechanism == PLUS
        header, rest = _split_header(_text(message))
        self._check_header(header)
        found = _FIRST.fullmatch(rest)
        if found is None:
            if rest.startswith("m="):
                raise SqlRefused("0A000", "client requires an unsupported SCRAM extension")
            raise RemoteProtocolError("malformed SCRAM message: a name and a nonce must follow")
        self._binding = header.encode() + (self._end_point or b"") * self._is_plus
        self._first, self._nonce = rest, found[1] + self._own_nonce
        salt, iterations = _encoded(self._verifier.salt), self._verifier.iterations
        self._answer = f"r={self._nonce},s={salt},i={iterations}"
        return self._answer.encode()

    def _check_header(self, header: str) -> None:
        """Check the client's wish for channel binding, and that it asks for no other identity."""
        flag, _, identity = header[:-1].partition(",")
        if identity:
            text = "client uses authorization identity, but it is not supported"
            raise SqlRefused("0A000", text)
        if flag == "y" and not self._is_plus and self._end_point is not None:
            # A stranger on the path has taken PLUS out of our offer.
            raise SqlRefused(
                "28000",
                "SCRAM channel binding negotiation error",
                detail="The client supports SCRAM channel binding but thinks the server does not. "
                "However, this server does support channel binding.",
            )
        if flag in ("n", "y") and not self._is_plus:
            return
        if not flag.startswith("p=") or not self._is_plus:
            raise RemoteProtocolError(f"malformed SCRAM message: {flag!r} is not of this mechanism")
        if flag != f"p={BINDING}":
            raise SqlRefused("08P01", f"unsupported SCRAM channel-binding type {flag[2:]!r}")

    def finish(self, message: bytes) -> bytes:
        """Return the last answer if the client knows the password. Raise SqlRefused 28P01 if not.

        Raise RemoteProtocolError for a malformed message.
        """
        found = _FINAL.fullmatch(_text(message))
        if found is None:
            raise RemoteProtocolError("malformed SCRAM message: a nonce and a proof must follow")
        without_proof, binding, nonce, proof_text = found.groups()
        try:
            proof = _decoded(proof_text)
        except ValueError:
            proof = b""
        if len(proof) != KEY_BYTES:
            raise RemoteProtocolError("malformed SCRAM message: the proof has a wrong length")
        if binding != _encoded(self._binding):
            if self._is_plus:
                raise SqlRefused("28000", "SCRAM channel binding check failed")
            raise RemoteProtocolError("unexpected SCRAM channel-binding attribute")
        if not hmac.compare_digest(nonce, self._nonce):
            raise RemoteProtocolError("invalid SCRAM response: the nonce does not match")
        signed = f"{self._first},{self._answer},{without_proof}".encode()
        signature = _hmac(self._verifier.stored_key, signed)
        client_key = bytes(one ^ two for one, two in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(
            hashlib.sha256(client_key).digest(), self._verifier.stored_key
        )
        last = _hmac(self._verifier.server_key, signed)
        if not (is_right and self._is_known):
            raise SqlRefused("28P01", f'password authentication failed for user "{self._user}"')
        return b"v=" + _encoded(last).encode()


def _split_header(text: str) -> tuple[str, str]:
    """Return the GS2 header with its last comma, and the rest."""
    flag, comma, rest = text.partition(",")
    identity, second, rest = rest.partition(",")
    if not comma or not second or (identity and not identity.startswith("a=")):
        raise RemoteProtocolError("malformed SCRAM message: no channel-binding flag at its start")
    return f"{flag},{identity},", rest


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX or b"\0" in message:
        raise RemoteProtocolError("malformed SCRAM message: its length is wrong")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("malformed SCRAM message: it is not UTF-8") from None


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str) -> bytes:
    """Return the bytes of a base64 text; raise ValueError if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
