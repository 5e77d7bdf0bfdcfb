"""The login of a PostgreSQL client by password: the messages around `scram`. A shell.

    identity = await PasswordLogin(users, end_point).identify(client, name)

An unknown user gets the same messages as a known one, and the same text at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.identity import NOBODY, Identity
from walkeeper_common.postgres.sasl_messages import (
    authentication_sasl,
    authentication_sasl_continue,
    authentication_sasl_final,
    parse_sasl_initial,
)
from walkeeper_common.postgres.scram import MESSAGE_BYTES_MAX, NONCE_BYTES, ScramServer
from walkeeper_common.users import Users
from walkeeper_safekeeper.replication.client_connection import ClientConnection

SASL_BYTES_MAX = 2 * MESSAGE_BYTES_MAX  # a message, and the name of a mechanism


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """One client's login; `end_point` is the hash of the certificate that it was served.

    `users` returns the users of this moment.
    """

    users: Callable[[], Users]
    end_point: bytes | None = None

    async def identify(self, client: ClientConnection, name: str) -> Identity:
        """Return the identity of the user. Raise SqlRefused 28P01 for a wrong password.

        Raise RemoteProtocolError or ClientGone as well.
        """
        users = self.users()
        user = users.by_name.get(name)
        server = ScramServer(
            name,
            user.verifier if user is not None else None,
            users.stand_in.verifier(name),
            nonce=os.urandom(NONCE_BYTES),
            end_point=self.end_point,
        )
        with client.short_messages(SASL_BYTES_MAX):
            client.send(authentication_sasl(server.mechanisms))
            mechanism, first = parse_sasl_initial(await _response(client))
            if first is None:
                client.send(authentication_sasl_continue(b""))
                first = await _response(client)
            client.send(authentication_sasl_continue(server.begin(mechanism, first)))
            last = server.finish(await _response(client))
        client.send(authentication_sasl_final(last))
        return user.identity if user is not None else NOBODY


async def _response(client: ClientConnection) -> bytes:
    received = await client.next_message()
    if received.tag != b"p":
        raise RemoteProtocolError(f"expected SASL response, got message type {received.tag!r}")
    return received.body
