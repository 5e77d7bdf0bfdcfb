"""The login of a PostgreSQL client by password: the messages around `scram`. A shell.

    identity = await PasswordLogin(users, end_point).identify(client, name)
    still = login.holds(users)   whether the user has the same password, roles and clusters in them

An unknown user gets the same messages as a known one, and the same text at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from walkeeper_common.access.identity import NOBODY, Identity
from walkeeper_common.access.users import User, Users
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.postgres.sasl_messages import (
    authentication_sasl,
    authentication_sasl_continue,
    authentication_sasl_final,
    parse_sasl_initial,
)
from walkeeper_common.postgres.scram import MESSAGE_BYTES_MAX, NONCE_BYTES, ScramServer
from walkeeper_safekeeper.replication.client_connection import ClientConnection

SASL_BYTES_MAX = 2 * MESSAGE_BYTES_MAX  # a message, and the name of a mechanism


class UsersSource(Protocol):
    """The users, which change while a safekeeper runs."""

    def current(self) -> Users:
        """Return the users of this moment."""
        ...

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this function from now on after each change."""
        ...


class PasswordLogin:
    """One client's login; `end_point` is the hash of the certificate that it was served."""

    def __init__(self, users: UsersSource, end_point: bytes | None = None) -> None:
        self._users, self._end_point = users, end_point
        self._proved: User | None = None

    def holds(self, users: Users) -> bool:
        """Return False if the user who has logged in is no longer among these, or has changed."""
        return self._proved is None or _is_same(self._proved, users)

    async def identify(self, client: ClientConnection, name: str) -> Identity:
        """Return the identity of the user. Raise SqlRefused 28P01 for a wrong password.

        Raise 57P01 if the user has changed meanwhile; RemoteProtocolError or ClientGone as well.
        """
        users = self._users.current()
        user = users.by_name.get(name)
        server = ScramServer(
            name,
            user.verifier if user is not None else None,
            users.stand_in.verifier(name),
            nonce=os.urandom(NONCE_BYTES),
            end_point=self._end_point,
        )
        with client.short_messages(SASL_BYTES_MAX):
            client.send(authentication_sasl(server.mechanisms))
            mechanism, first = parse_sasl_initial(await _response(client))
            if first is None:
                client.send(authentication_sasl_continue(b""))
                first = await _response(client)
            client.send(authentication_sasl_continue(server.begin(mechanism, first)))
            last = server.finish(await _response(client))
        if user is not None and not _is_same(user, self._users.current()):
            raise SqlRefused("57P01", "terminating connection: the user has changed meanwhile")
        self._proved = user
        client.send(authentication_sasl_final(last))
        return user.identity if user is not None else NOBODY


def _is_same(user: User, users: Users) -> bool:
    """Return whether the user is among these with the same password, roles and clusters.

    The bound on connections is for new ones, so a change of it is none.
    """
    now = users.by_name.get(user.name)
    return now is not None and replace(now, connections_max=user.connections_max) == user


async def _response(client: ClientConnection) -> bytes:
    received = await client.next_message()
    if received.tag != b"p":
        raise RemoteProtocolError(f"expected SASL response, got message type {received.tag!r}")
    return received.body
