"""A login by password, against libpq's own verifiers and the vectors of RFC 7677."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from psycopg import pq

from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.postgres.sasl_messages import parse_sasl_initial
from walkeeper_common.postgres.scram import (
    BINDING,
    MESSAGE_BYTES_MAX,
    PLAIN,
    PLUS,
    ScramServer,
    StandIn,
    Verifier,
)

NONCE = bytes(range(18))
END_POINT = bytes(range(32))


def verifier_of(password: str) -> Verifier:
    """Return the verifier that libpq makes."""
    libpq = pq.PGconn.connect_start(b"no connection")
    return Verifier.parse(
        libpq.encrypt_password(password.encode(), b"u", b"scram-sha-256").decode()
    )


class Client:
    """A client of RFC 5802, written apart from the server."""

    def __init__(self, password: str, flag: str = "n", end_point: bytes = b"") -> None:
        self.password, self.header = password, f"{flag},,"
        self.binding = base64.b64encode(self.header.encode() + end_point).decode()
        self.bare = "n=,r=clientnonce"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, answer: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in answer.decode().split(","))
        salt, rounds = base64.b64decode(parts["s"]), int(parts["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, rounds)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c={self.binding},r={parts['r']}"
        self.signed = f"{self.bare},{answer.decode()},{without}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), self.signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_key = hmac.digest(salted, b"Server Key", "sha256")
        return f"{without},p={base64.b64encode(proof).decode()}".encode()

    def believes(self, last: bytes) -> bool:
        mine = hmac.digest(self.server_key, self.signed, "sha256")
        return last == b"v=" + base64.b64encode(mine)


def server_of(password: str | None, end_point: bytes | None = None) -> ScramServer:
    known = None if password is None else verifier_of(password)
    instead = StandIn.beside([verifier_of("another")]).verifier("alice")
    return ScramServer("alice", known, instead, nonce=NONCE, end_point=end_point)


def refusal(server: ScramServer, client: Client, mechanism: str = PLAIN) -> SqlRefused:
    with pytest.raises(SqlRefused) as refused:
        server.finish(client.final(server.begin(mechanism, client.first())))
    return refused.value


@pytest.mark.parametrize(
    ("mechanism", "flag", "served"),
    [(PLAIN, "n", None), (PLAIN, "y", None), (PLAIN, "n", END_POINT), (PLUS, "p", END_POINT)],
)
def test_the_right_password_comes_in(mechanism: str, flag: str, served: bytes | None) -> None:
    server = server_of("sesame", served)
    flag = f"p={BINDING}" if flag == "p" else flag
    client = Client("sesame", flag, END_POINT if mechanism == PLUS else b"")
    assert mechanism in server.mechanisms
    assert client.believes(server.finish(client.final(server.begin(mechanism, client.first()))))


def test_the_vectors_of_rfc_7677() -> None:
    salted = hashlib.pbkdf2_hmac(
        "sha256", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096
    )
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    own = hmac.digest(salted, b"Server Key", "sha256")
    verifier = Verifier(4096, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), stored, own)
    server = ScramServer("user", verifier, verifier, nonce=NONCE, end_point=None)
    server.begin(PLAIN, b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    answer = (
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    server._answer = answer  # the nonce of the RFC is no base64, as ours are
    server._nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    last = server.finish(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer() -> None:
    wrong = refusal(server_of("sesame"), Client("wrong"))
    unknown = refusal(server_of(None), Client("sesame"))
    assert (wrong.sqlstate, str(wrong)) == (unknown.sqlstate, str(unknown))
    assert wrong.sqlstate == "28P01"
    assert str(wrong) == 'password authentication failed for user "alice"'


def test_a_wrong_password_and_an_unknown_user_cost_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times would be chance, so the steps that take time are counted."""
    digest, hashed = hmac.digest, list[int]()

    def note(key: bytes, message: bytes, name: str) -> bytes:
        hashed.append(len(message))
        return digest(key, message, name)

    monkeypatch.setattr(hmac, "digest", note)
    refusal(server_of("sesame"), Client("wrong"))
    known, hashed[:] = list(hashed), []
    refusal(server_of(None), Client("wrong"))
    assert hashed == known != []


def test_no_password_fits_a_name_that_is_not_there() -> None:
    """A client outside that would know the password of the stand-in stays there, too."""
    instead = verifier_of("sesame")
    server = ScramServer("alice", None, instead, nonce=NONCE, end_point=None)
    assert refusal(server, Client("sesame")).sqlstate == "28P01"


def test_the_salt_of_an_unknown_name_looks_like_one_and_stays() -> None:
    users = [Verifier(9000, bytes([n]) * 20, bytes(32), bytes([n]) * 32) for n in (1, 2)]
    stand_in = StandIn.beside(users)
    one = stand_in.verifier("nobody")
    assert (one.iterations, len(one.salt)) == (9000, 20)
    assert one.salt == stand_in.verifier("nobody").salt != stand_in.verifier("another").salt
    assert one.salt != StandIn.beside(users[1:]).verifier("nobody").salt, "from a secret"
    assert StandIn.beside([]).verifier("nobody").iterations == 4096


def test_a_client_that_was_kept_from_channel_binding_is_refused() -> None:
    refused = refusal(server_of("sesame", END_POINT), Client("sesame", "y"))
    assert refused.sqlstate == "28000" and "negotiation error" in str(refused)


def test_the_certificate_of_another_server_is_refused() -> None:
    client = Client("sesame", f"p={BINDING}", bytes(32))
    refused = refusal(server_of("sesame", END_POINT), client, PLUS)
    assert refused.sqlstate == "28000" and "binding check failed" in str(refused)


@pytest.mark.parametrize(
    ("mechanism", "first", "sqlstate"),
    [
        (PLAIN, b"n,a=admin,n=,r=x", "0A000"),
        (PLAIN, b"n,,m=ext,n=,r=x", "0A000"),
        (PLUS, b"p=tls-unique,,n=,r=x", "08P01"),
        ("SCRAM-SHA-1", b"n,,n=,r=x", None),
        (PLAIN, b"p=tls-server-end-point,,n=,r=x", None),
        (PLUS, b"n,,n=,r=x", None),
        (PLAIN, b"", None),
        (PLAIN, b"n", None),
        (PLAIN, b"n,b=x,n=,r=x", None),
        (PLAIN, b"n,,n=,r=", None),
        (PLAIN, b"n,,n=,r=a\x01b", None),
        (PLAIN, b"n,,n=,r=\xff", None),
        (PLAIN, b"n,,n=,r=x\0", None),
        (PLAIN, b"n,,n=,r=" + b"x" * MESSAGE_BYTES_MAX, None),
    ],
)
def test_a_bad_first_message_is_refused(mechanism: str, first: bytes, sqlstate: str | None) -> None:
    server = server_of("sesame", END_POINT)
    if sqlstate is None:
        with pytest.raises(RemoteProtocolError):
            server.begin(mechanism, first)
        return
    with pytest.raises(SqlRefused) as refused:
        server.begin(mechanism, first)
    assert refused.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=clientnonce", b"r=clientnoncf"),
        lambda final: final.partition(b",p=")[0],
        lambda final: final.partition(b",p=")[0] + b",p=AAAA",
        lambda final: final.partition(b",p=")[0] + b",p=%%%%",
        lambda final: b"\xff" + final,
    ],
)
def test_a_bad_last_message_is_refused(change: object) -> None:
    server, client = server_of("sesame"), Client("sesame")
    final = client.final(server.begin(PLAIN, client.first()))
    assert callable(change)
    with pytest.raises(RemoteProtocolError):
        server.finish(change(final))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md5c4ca4238a0b923820dcc509a6f75849b",
        "SCRAM-SHA-256$0:c2FsdA==$" + "A" * 43 + "=:" + "A" * 43 + "=",
        "SCRAM-SHA-256$4096:c2FsdA==$AAAA:" + "A" * 43 + "=",
        "SCRAM-SHA-256$4096:c2FsdA==$%%%%:%%%%",
    ],
)
def test_a_text_that_is_no_verifier_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(Refused) as refused:
        Verifier.parse(text)
    assert not text or text not in str(refused.value)


def test_a_verifier_comes_back_as_it_was_and_shows_nothing() -> None:
    one = verifier_of("sesame")
    assert Verifier.parse(str(one)) == one and repr(one) == "Verifier(…)"


@pytest.mark.parametrize(
    "body",
    [b"", b"SCRAM", b"SCRAM\0", b"SCRAM\0\0\0\0\2x", b"S\0\xff\xff\xff\xfe", b"S\0\0\0\0\0x"],
)
def test_a_malformed_start_of_sasl_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_sasl_initial(body)


def test_a_start_of_sasl_has_a_message_or_none() -> None:
    assert parse_sasl_initial(b"S\0\0\0\0\1x") == ("S", b"x")
    assert parse_sasl_initial(b"S\0\xff\xff\xff\xff") == ("S", None)
