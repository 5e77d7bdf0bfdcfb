"""--http lets in a client with a token, or without tokens one that names this machine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.tls_files import TlsFiles
from walkeeper_common.access.http_access import (
    BEARER,
    NO_TOKEN,
    WRONG_HOST,
    HttpAccess,
    parse_tokens,
)
from walkeeper_common.access.identity import Role
from walkeeper_common.errors import Refused
from walkeeper_common.shell.http import http_audit
from walkeeper_common.shell.http.http_audit import HttpAudit
from walkeeper_common.shell.http.http_endpoints import CONNECTIONS_MAX, Endpoints, serve_http
from walkeeper_common.shell.http.http_locks import http_tokens, use_http_token, use_https
from walkeeper_common.shell.http.web_page import HEADERS
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.process.descriptors import connections_allowed
from walkeeper_common.shell.tls.own_credentials import use_credentials

OLD, NEW = "a" * 32, "b" * 32
GUARDED = ("/status", "/metrics", "/page", "/", "/page.js", "/nothing")


@pytest.fixture(autouse=True)
def no_token() -> Iterator[None]:
    yield
    use_http_token(None)
    use_https(is_on=False)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{OLD}\n")
    use_http_token(str(path))
    return path


class Served:
    """A daemon's --http that is not ready, with the name of a log in its reason."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session
        self.refusals, self.port = Counter[str](), 0

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self._session.get(self._url + path, headers=headers) as answer:
            assert HEADERS.items() <= answer.headers.items(), answer.headers
            found = answer.headers.getall("WWW-Authenticate", ())
            self.challenges = [challenge.split()[0] for challenge in found]
            return answer.status, await answer.text()


@contextlib.asynccontextmanager
async def serving(
    tls: ssl.SSLContext | None = None, *, own_audit: bool = True
) -> AsyncIterator[Served]:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="a row")

    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    shown = Endpoints(lambda: "main: it is broken", lambda: {"id": 1}, list)
    connector = aiohttp.TCPConnector(ssl=True if tls is None else tls)
    async with aiohttp.ClientSession(connector=connector) as session:
        audit = Audit()
        running = asyncio.create_task(
            serve_http(
                ("127.0.0.1", 0),
                shown,
                on_listening=lambda _, found: port.set_result(found),
                routes={"/page": page},
                audit=audit if own_audit else None,
            )
        )
        try:
            served = Served(f"http{'s' * bool(tls)}://127.0.0.1:{await port}", session)
            served.refusals, served.port = audit.refusals, await port
            yield served
        finally:
            running.cancel()
            await asyncio.wait([running])


def test_without_the_token_a_client_sees_no_name(token_file: Path) -> None:
    async def body() -> None:
        async with serving() as served:
            for path in GUARDED:
                for value in ("", "Bearer ", f"Bearer {NEW}", f"Digest {OLD}", "Basic %%%"):
                    status, text = await served.get(path, Authorization=value)
                    assert status == 401 and "--http-token" in text, (path, value)
                    assert served.challenges == ["Basic", "Bearer"], "each a header of its own"
            assert await served.get("/health") == (200, "ok\n")
            assert await served.get("/ready") == (503, "not ready\n")
            assert set(served.refusals) == {"http-token"}
            status, text = await served.get("/metrics", Authorization=f"Bearer {OLD}")
            assert 'walkeeper_http_refusals_total{reason="token"}' in text

    asyncio.run(body())


def test_with_the_token_prometheus_and_a_browser_see_all(token_file: Path) -> None:
    browser = base64.b64encode(f"anybody:{OLD}".encode()).decode()

    async def body() -> None:
        async with serving() as served:
            for value in (f"Bearer {OLD}", f"bearer  {OLD} ", f"Basic {browser}"):
                assert (await served.get("/metrics", Authorization=value))[0] == 200
                assert (await served.get("/status", Authorization=value))[0] == 200
                status, text = await served.get("/ready", Authorization=value)
                assert (status, text) == (503, "main: it is broken\n")
            named = {"Host": "h1.example", "Authorization": f"Bearer {OLD}"}
            assert (await served.get("/", **named))[0] == 200
            assert not served.refusals

    asyncio.run(body())


def test_a_peer_with_a_proof_has_one_line_an_hour(
    token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No daemon has to give an audit of its own, and the token is in no line."""
    caplog.set_level(logging.INFO)

    async def body() -> None:
        async with serving(own_audit=False) as served:
            for _ in range(3):
                await served.get("/metrics", Authorization=f"Bearer {OLD}")
            await served.get("/metrics", Authorization=f"Bearer {NEW}")

    asyncio.run(body())
    lines = [each.getMessage() for each in caplog.records]
    login, refusal = [line for line in lines if line.startswith("audit: ")]
    assert login.startswith("audit: event=login") and "identity=token how=token" in login
    assert "address=127.0.0.1" in login and "door=http" in login
    assert refusal.startswith("audit: event=refusal reason=http-token")
    assert OLD not in login and NEW not in refusal


def test_remembered_logins_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_audit, "LOGINS_MAX", 2)
    lines = list[str]()

    async def body() -> None:
        noted = HttpAudit(Audit(write=lines.append))
        for address in ("a", "b", "a", "c", "a", "b"):
            noted.login(BEARER, address)

    asyncio.run(body())
    assert len(lines) == 5, "a and b lost their places to c and a"


def test_tokens_change_without_a_restart(token_file: Path) -> None:
    def accepted() -> list[bool]:
        access = HttpAccess(http_tokens(), "")
        tried = [f"Bearer {each}" for each in (OLD, NEW)]
        return [access.refusal(host="", authorization=each) is None for each in tried]

    assert accepted() == [True, False]
    token_file.write_text(f"{OLD}\n{NEW}\n")
    assert accepted() == [True, True]
    token_file.write_text(f"{NEW}\n\n")
    assert accepted() == [False, True]
    token_file.write_text("short\n")
    assert accepted() == [False, True]


def test_a_page_of_another_site_reads_nothing_by_a_name_of_its_own() -> None:
    async def body() -> None:
        async with serving() as served:
            assert (await served.get("/status", Host="localhost:7676"))[0] == 200
            status, text = await served.get("/status", Host="evil.example")
            assert status == 421 and "--http-token" in text
            assert await served.get("/ready", Host="evil.example") == (503, "not ready\n")
            assert await served.get("/ready") == (503, "main: it is broken\n")
            assert served.refusals == {"http-host": 1}

    asyncio.run(body())


@pytest.mark.parametrize(
    ("header", "is_own"),
    [
        ("127.0.0.1:7676", True),
        ("127.0.0.1", True),
        ("[::1]:7676", True),
        ("[fe80::1]", True),
        ("10.0.0.7:7676", True),
        ("localhost", True),
        ("safekeeper1:7676", True),
        ("H1.Example:7676", True),
        ("", False),
        ("evil.example:7676", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
    ],
)
def test_the_names_of_this_machine(header: str, is_own: bool) -> None:
    refusal = HttpAccess((), "h1.example").refusal(host=header, authorization="")
    assert refusal is (None if is_own else WRONG_HOST)


def test_an_empty_token_is_never_right() -> None:
    for value in ("", "Bearer", "Basic Og==", "Bearer \udce9"):
        assert HttpAccess((OLD,), "").refusal(host="", authorization=value) is NO_TOKEN


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "a" * 600, "a" * 20 + " b", "é" * 20, "x\n" * 17]
)
def test_a_file_without_a_good_token_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_tokens(text)
    assert "aaaa" not in str(refused.value)
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(Refused, match="the token file"):
        use_http_token(str(path))


def test_a_file_that_others_can_read_is_refused(token_file: Path) -> None:
    token_file.chmod(0o644)
    with pytest.raises(Refused, match="chmod 600"):
        use_http_token(str(token_file))
    assert http_tokens() == ()


# TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def own_file(files: TlsFiles) -> Iterator[str]:
    path = files.path(Role.SAFEKEEPER, "1")
    use_credentials(path)
    use_https(is_on=True)
    yield path
    use_credentials(None)


def client_context(ca: str, file: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if file is not None:
        context.load_cert_chain(file)
    return context


@pytest.mark.parametrize(
    ("role", "is_let_in"),
    [(Role.PAGER, True), (Role.ADMIN, True), (Role.MONITOR, False), (None, False)],
)
def test_over_tls_a_monitor_reads_no_page_of_a_table(
    files: TlsFiles, own_file: str, role: Role | None, is_let_in: bool
) -> None:
    context = client_context(own_file, files.path(role, "m") if role is not None else None)

    async def body() -> None:
        async with serving(context) as served:
            assert (await served.get("/page"))[0] == (200 if is_let_in else 401)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("role", "is_let_in"),
    [(Role.MONITOR, True), (Role.ADMIN, True), (Role.REPLICA, False), (None, False)],
)
def test_over_tls_a_monitors_certificate_does_as_well(
    files: TlsFiles, own_file: str, role: Role | None, is_let_in: bool
) -> None:
    context = client_context(own_file, files.path(role, "m") if role is not None else None)

    async def body() -> None:
        async with serving(context) as served:
            for path in ("/metrics", "/status"):
                assert (await served.get(path))[0] == (200 if is_let_in else 401)
            assert await served.get("/health") == (200, "ok\n")
            assert ("main" in (await served.get("/ready"))[1]) is is_let_in

    asyncio.run(body())


def test_over_tls_a_token_does_without_a_certificate(own_file: str, token_file: Path) -> None:
    async def body() -> None:
        async with serving(client_context(own_file)) as served:
            assert (await served.get("/metrics", Authorization=f"Bearer {OLD}"))[0] == 200
            assert (await served.get("/metrics"))[0] == 401

    asyncio.run(body())


def test_a_certificate_of_another_authority_is_refused_in_the_handshake(
    own_file: str, tmp_path: Path
) -> None:
    eve = TlsFiles(tmp_path).path(Role.MONITOR, "eve")

    async def body() -> None:
        async with serving(client_context(own_file, eve)) as served:
            with pytest.raises(aiohttp.ClientError):
                await served.get("/metrics")

    asyncio.run(body())


def test_silent_handshakes_end_and_shut_nobody_out(
    own_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walkeeper_common.shell.http.http_endpoints.HEAD_TIMEOUT_S", 1.0)
    allowed = connections_allowed(CONNECTIONS_MAX)

    async def body() -> None:
        async with serving(client_context(own_file)) as served:
            silent = [
                await asyncio.open_connection("127.0.0.1", served.port) for _ in range(allowed + 5)
            ]
            assert await served.get("/health") == (200, "ok\n")
            for reader, writer in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 20) == b""
                writer.close()

    asyncio.run(body())


def test_without_a_file_there_is_no_tls() -> None:
    use_https(is_on=True)

    async def body() -> None:
        with pytest.raises(Refused, match="add --tls FILE"):
            await serve_http(("127.0.0.1", 0), Endpoints(lambda: None, dict, list))

    asyncio.run(body())
