"""TLS handshakes of old versions, of times to come, and of another connection get nobody in."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import warnings
from pathlib import Path

import pytest

from tests.safekeeper.test_opening import context_of, tls_client
from tests.support.served_port import Served, with_port
from tests.support.waiting import LIMIT_S, until
from tests.tls_files import NOW, TlsFiles
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls.credentials import ALPN, ALPN_POSTGRESQL
from walkeeper_common.wire.framing import PREFACE

NO_WAY_IN = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_our_own_protocol_needs_tls_1_3(files: TlsFiles, version: str) -> None:
    own, mine = files.path(Role.SAFEKEEPER, "1"), files.path(Role.PROPOSER, "db1")
    context = context_of(mine, own, ALPN)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]

    async def story(served: Served) -> None:
        _, writer = await tls_client(served.port, context)
        writer.write(PREFACE)
        await until(lambda: bool(served.door.received or served.audit.refusals), LIMIT_S)
        is_right = version == "TLSv1_3"
        assert len(served.door.received) == is_right
        assert served.audit.refusals == ({} if is_right else {"protocol": 1})
        assert is_right or "TLSv1.2" in served.lines[-1]
        writer.transport.abort()

    with_port(story, own)


@pytest.mark.parametrize("alpn", [ALPN, ALPN_POSTGRESQL])
def test_tls_1_1_is_refused(files: TlsFiles, alpn: str) -> None:
    own, mine = files.path(Role.SAFEKEEPER, "1"), files.path(Role.ADMIN, "alice")
    context = context_of(mine, own, alpn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")

    async def story(served: Served) -> None:
        with pytest.raises(NO_WAY_IN):
            await tls_client(served.port, context)
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        assert "unsupported protocol" in served.lines[-1]

    with_port(story, own)


def test_a_certificate_of_tomorrow_does_not_get_in(tmp_path: Path) -> None:
    now = TlsFiles(tmp_path)
    own, early = now.path(Role.SAFEKEEPER, "1"), str(tmp_path / "early.pem")
    tomorrow = NOW + datetime.timedelta(days=2)
    authority = type(now.authority)(str(tmp_path / "ca"), tomorrow)
    authority.issue(early, ["walkeeper://*/admin/early"], ())

    async def story(served: Served) -> None:
        with pytest.raises(NO_WAY_IN):
            reader, writer = await tls_client(served.port, context_of(early, own, ALPN))
            writer.write(PREFACE)
            await reader.readexactly(1)
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        assert "not yet valid" in served.lines[-1] and not served.door.received

    with_port(story, own)


def test_a_recorded_conversation_cannot_be_replayed(files: TlsFiles) -> None:
    own, mine = files.path(Role.SAFEKEEPER, "1"), files.path(Role.PROPOSER, "db1")

    async def story(served: Served) -> None:
        recorded = bytearray()

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner, out = await asyncio.open_connection("127.0.0.1", served.port)

            async def back() -> None:
                while data := await inner.read(1 << 16):
                    writer.write(data)

            returning = asyncio.create_task(back())
            while data := await reader.read(1 << 16):
                recorded.extend(data)
                out.write(data)
            out.close()
            await returning
            writer.close()

        async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            reader, writer = await tls_client(port, context_of(mine, own, ALPN))
            writer.write(PREFACE)
            await until(lambda: len(served.door.received) == 1, LIMIT_S)
            writer.close()
            await reader.read()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(recorded)
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        assert len(served.door.received) == 1
        writer.transport.abort()

    with_port(story, own)
