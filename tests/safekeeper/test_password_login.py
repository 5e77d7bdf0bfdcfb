"""Clients of PostgreSQL log in with a password, over TLS, or in plain where that is allowed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.common.test_scram import Client as ScramProof
from tests.support.raw_client import RawClient, errors, tags
from tests.support.served_port import NONE_ADMITTED, Served, with_port
from tests.support.waiting import LIMIT_S
from tests.tls_files import TlsFiles
from walkeeper_cli.users.writing import add_user, remove_user, verifier_of
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import User, Users, parse_clusters
from walkeeper_common.errors import Unreachable
from walkeeper_common.postgres.pgwire import startup_packet
from walkeeper_common.shell.files.users_file import users_file
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_restore.safekeeper_histories import timeline_history
from walkeeper_safekeeper.connections.client_places import ClientPlaces
from walkeeper_safekeeper.server import PlainPeers

LOGIN = {"user": "standby1", "database": "replication", "replication": "true"}


def user(name: str, role: Role, cluster: str = "*", connections: int | None = None) -> User:
    verifier = verifier_of(name, f"password of {name}")
    return User(name, verifier, frozenset((role,)), parse_clusters(cluster), connections)


USERS = Users(
    {
        each.name: each
        for each in (
            user("standby1", Role.REPLICA, connections=2),
            user("elsewhere", Role.REPLICA, "other"),
            user("prometheus", Role.MONITOR),
            user("alice", Role.ADMIN),
        )
    }
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def no_credentials() -> Iterator[None]:
    yield
    use_credentials(None)


class FixedUsers:
    """Users that no file has."""

    def __init__(self, users: Users) -> None:
        self.users = users

    def current(self) -> Users:
        return self.users

    def on_change(self, call: Callable[[], None]) -> None:
        """Keep no function, since nothing changes here."""


def dsn(port: int, name: str, password: str | None = None, **more: str) -> str:
    given = {
        "host": "127.0.0.1",
        "port": str(port),
        "user": name,
        "password": password or f"password of {name}",
        "dbname": "replication",
        "replication": "true",
        **more,
    }
    return psycopg.conninfo.make_conninfo(**given)


def ask(conninfo: str, command: bytes = b"IDENTIFY_SYSTEM") -> object:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        return connection.execute(command).fetchone()


def over_tls(ca: str) -> dict[str, str]:
    return {"sslmode": "verify-full", "sslrootcert": ca, "sslcert": "/none", "sslkey": "/none"}


@pytest.mark.parametrize("binding", ["disable", "prefer", "require"])
def test_libpq_comes_in_over_tls_with_and_without_channel_binding(
    files: TlsFiles, binding: str
) -> None:
    own = files.path(Role.SAFEKEEPER, "1")

    async def story(served: Served) -> None:
        more = {**over_tls(own), "channel_binding": binding}
        assert await asyncio.to_thread(ask, dsn(served.port, "standby1", **more))
        assert "how=scram-sha-256" in served.lines[-1] and "identity=standby1" in served.lines[-1]

    with_port(story, own, users=FixedUsers(USERS))


def test_asyncpg_and_psql_come_in(files: TlsFiles) -> None:
    own = files.path(Role.SAFEKEEPER, "1")

    async def story(served: Served) -> None:
        connection = await asyncpg.connect(
            host="127.0.0.1",
            port=served.port,
            user="standby1",
            password="password of standby1",
            database="replication",
            server_settings={"replication": "true"},
            ssl="disable",
        )
        await connection.close()
        command = ["psql", "-X", "-A", "-t", "-d", dsn(served.port, "standby1"), "-c"]
        asked = await asyncio.to_thread(
            subprocess.run, [*command, "SHOW wal_segment_size"], capture_output=True, text=True
        )
        assert asked.stdout == "1MB\n", asked

    with_port(story, own, users=FixedUsers(USERS), plain=PlainPeers())


def test_a_wrong_password_has_the_code_and_the_text_of_postgresql() -> None:
    async def story(served: Served) -> None:
        for name in ("standby1", "nobody"):
            with pytest.raises(psycopg.OperationalError) as refused:
                await asyncio.to_thread(ask, dsn(served.port, name, "wrong"))
            text = f'FATAL:  password authentication failed for user "{name}"'
            assert text in str(refused.value)
        assert served.audit.refusals == {"28P01": 2}

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


@pytest.mark.parametrize("name", ["standby1", "nobody"])
def test_a_name_that_is_not_there_takes_the_same_steps(name: str) -> None:
    async def story(served: Served) -> None:
        client = await RawClient.open(served.port)
        client.writer.write(startup_packet({**LOGIN, "user": name}))
        offer = await client.next()
        assert offer is not None and offer.body == b"\0\0\0\x0aSCRAM-SHA-256\0\0"
        first = b"n,,n=,r=abcdefgh"
        client.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4) + first)
        answer = await client.next()
        assert answer is not None
        nonce = answer.body[4:].split(b",")[0]
        assert answer.body.endswith(b",i=4096")
        client.send(b"p", b"c=biws," + nonce + b",p=" + b"A" * 43 + b"=")
        (error,) = errors(await client.until(b"E"))
        assert error["C"] == "28P01"
        assert error["M"] == f'password authentication failed for user "{name}"'
        assert await client.closed()

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


def test_a_client_that_wants_an_empty_question_gets_it() -> None:
    async def story(served: Served) -> None:
        client = await RawClient.open(served.port)
        client.writer.write(startup_packet(LOGIN))
        await client.next()
        client.send(b"p", b"SCRAM-SHA-256\0\xff\xff\xff\xff")
        assert (question := await client.next()) is not None and question.body == b"\0\0\0\x0b"
        client.send(b"p", b"n,,n=,r=abcdefgh")
        assert (answer := await client.next()) is not None and b",i=4096" in answer.body

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


@pytest.mark.parametrize(
    ("tag", "body"),
    [(b"p", bytes(3000)), (b"Q", b"IDENTIFY_SYSTEM\0"), (b"p", b"x")],
)
def test_before_the_login_a_client_sends_short_passwords_alone(tag: bytes, body: bytes) -> None:
    async def story(served: Served) -> None:
        client = await RawClient.open(served.port)
        client.writer.write(startup_packet(LOGIN))
        client.send(tag, body)
        (error,) = errors(await client.until(b"E"))
        assert error["C"] == "08P01"
        assert await client.closed()

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


def test_a_password_in_plain_is_refused_where_plain_peers_are(files: TlsFiles) -> None:
    own = files.path(Role.SAFEKEEPER, "1")

    async def story(served: Served) -> None:
        with pytest.raises(psycopg.OperationalError, match="passwords over TLS only"):
            await asyncio.to_thread(ask, dsn(served.port, "standby1", sslmode="disable"))

    with_port(story, own, users=FixedUsers(USERS), plain=NONE_ADMITTED)


def test_a_certificate_needs_no_password(files: TlsFiles) -> None:
    own, mine = files.path(Role.SAFEKEEPER, "1"), files.path(Role.REPLICA, "standby9")

    async def story(served: Served) -> None:
        more = {**over_tls(own), "sslcert": mine, "sslkey": mine}
        assert await asyncio.to_thread(ask, dsn(served.port, "standby1", "wrong", **more))
        assert "identity=standby9" in served.lines[-1] and "how=certificate" in served.lines[-1]

    with_port(story, own, users=FixedUsers(USERS), plain=NONE_ADMITTED)


def test_loopback_needs_a_password_too_and_our_own_protocol_none() -> None:
    async def story(served: Served) -> None:
        client = await RawClient.open(served.port)
        client.writer.write(startup_packet(LOGIN))
        assert (offer := await client.next()) is not None and offer.body[3] == 10

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


def test_restore_does_not_wait_for_a_safekeeper_that_asks_for_a_password() -> None:
    async def story(served: Served) -> None:
        address = ("127.0.0.1", served.port)
        with pytest.raises(Unreachable, match=r"asks for a password, .* add --tls FILE"):
            await asyncio.to_thread(timeline_history, address, "main", 2, 5.0)

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


def test_the_roles_and_clusters_of_a_user_decide() -> None:
    async def story(served: Served) -> None:
        for name, command, said in (
            ("prometheus", b"CREATE_REPLICATION_SLOT prometheus PHYSICAL", "may not run"),
            ("standby1", b"CREATE_REPLICATION_SLOT another PHYSICAL", "may not run"),
            ("elsewhere", b"IDENTIFY_SYSTEM", 'may not reach cluster "main"'),
        ):
            with pytest.raises(psycopg.Error, match=said):
                await asyncio.to_thread(ask, dsn(served.port, name), command)
        created = b"CREATE_REPLICATION_SLOT standby1_a PHYSICAL"
        assert await asyncio.to_thread(ask, dsn(served.port, "standby1"), created)

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


def test_a_change_of_the_file_holds_for_new_logins(tmp_path: Path) -> None:
    path = str(tmp_path / "users")
    add_user(path, user("standby1", Role.REPLICA), replaces=False)

    async def story(served: Served) -> None:
        connect = psycopg.AsyncConnection.connect
        add_user(path, user("standby2", Role.REPLICA), replaces=False)
        async with await connect(dsn(served.port, "standby2")):
            pass
        remove_user(path, "standby1")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            await connect(dsn(served.port, "standby1"))
        (tmp_path / "users").write_text("garbage\n")
        async with await connect(dsn(served.port, "standby2")):
            pass

    with_port(story, None, users=users_file(path), plain=PlainPeers())


CHANGES: dict[str, tuple[User | None, bool]] = {
    "removed": (None, True),
    "another password": (user("standby1", Role.REPLICA), True),
    "another role": (replace(USERS.by_name["standby1"], roles=frozenset((Role.PAGER,))), True),
    "other clusters": (replace(USERS.by_name["standby1"], clusters=frozenset(("a",))), True),
    "another bound": (replace(USERS.by_name["standby1"], connections_max=1), False),
    "none": (USERS.by_name["standby1"], False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_user_that_is_removed_or_changed_loses_its_connections(
    tmp_path: Path, change: str
) -> None:
    changed, is_ended = CHANGES[change]
    path = str(tmp_path / "users")
    for name in ("standby1", "alice"):
        add_user(path, USERS.by_name[name], replaces=False)
    file = users_file(path)

    async def story(served: Served) -> None:
        connect = psycopg.AsyncConnection.connect
        one = await connect(dsn(served.port, "standby1"), autocommit=True)
        other = await connect(dsn(served.port, "alice"), autocommit=True)
        if changed is None:
            remove_user(path, "standby1")
        else:
            add_user(path, changed, replaces=True)
        file.reload()  # as SIGHUP does, and each minute
        if is_ended:
            with pytest.raises(psycopg.OperationalError, match="administrator command"):
                await one.execute(b"IDENTIFY_SYSTEM")
        else:
            await one.execute(b"IDENTIFY_SYSTEM")
        await other.execute(b"IDENTIFY_SYSTEM")
        assert served.audit.refusals == ({"user-changed": 1} if is_ended else {})
        await one.close()
        await other.close()

    with_port(story, None, users=file, plain=PlainPeers())


def test_a_user_that_is_removed_during_the_login_does_not_come_in() -> None:
    users = FixedUsers(USERS)

    async def story(served: Served) -> None:
        client, proof = await RawClient.open(served.port), ScramProof("password of standby1")
        client.writer.write(startup_packet(LOGIN))
        await client.next()
        first = proof.first()
        client.send(b"p", b"SCRAM-SHA-256\0" + len(first).to_bytes(4) + first)
        answer = await client.next()
        assert answer is not None
        users.users = Users()
        client.send(b"p", proof.final(answer.body[4:]))
        (error,) = errors(await client.until(b"E"))
        assert error["C"] == "57P01"
        assert await client.closed()

    with_port(story, None, users=users, plain=PlainPeers())


# Places


def test_a_user_has_at_most_its_connections() -> None:
    async def story(served: Served) -> None:
        connect = psycopg.AsyncConnection.connect
        kept = [await connect(dsn(served.port, "standby1")) for _ in range(2)]
        with pytest.raises(psycopg.OperationalError) as refused:
            await connect(dsn(served.port, "standby1"))
        assert 'too many connections for role "standby1"' in str(refused.value)
        async with await connect(dsn(served.port, "alice")):
            pass
        for each in kept:
            await each.close()

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


def test_a_crowd_without_a_password_shuts_no_user_out() -> None:
    async def story(served: Served) -> None:
        crowd = [await RawClient.open(served.port) for _ in range(20)]
        for each in crowd:
            each.writer.write(startup_packet(LOGIN))
            assert tags([m for m in [await each.next()] if m is not None]) in ("R", "")
        connect = psycopg.AsyncConnection.connect
        async with asyncio.timeout(LIMIT_S), await connect(dsn(served.port, "standby1")):
            assert await crowd[0].closed()

    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers(), clients_max=10)


def test_the_last_places_are_the_operators() -> None:
    places = ClientPlaces(20)

    def come(number: int, name: str) -> str | None:
        assert not places.enter(number).is_refused
        refusal = places.admit(number, USERS.by_name[name].identity)
        if refusal is not None:
            places.leave(number)
        return refusal

    for number in range(16):
        assert come(number, "elsewhere") is None
    assert "reserved" in str(come(16, "elsewhere"))
    assert [come(number, "prometheus") is None for number in (17, 18, 19)] == [True, True, False]
    assert [come(number, "alice") for number in (20, 21)] == [None, None]
    assert places.enter(22).is_refused and len(places) == 20
    places.leave(0)
    assert come(23, "alice") is None
    assert places.enter(24).is_refused


def test_a_client_whose_place_was_taken_is_not_admitted() -> None:
    places = ClientPlaces(1)
    assert places.enter(1).evicted is None
    assert places.enter(2).evicted == 1
    assert places.admit(1, USERS.by_name["alice"].identity) is not None
    assert places.admit(2, USERS.by_name["alice"].identity) is None
