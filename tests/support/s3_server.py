"""An S3 server on loopback (moto's), and what goes wrong with real ones.

`faults` may be changed while it serves: each is looked at with every request.
"""

from __future__ import annotations

import io
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler, make_server

from tests.support.waiting import LIMIT_S

BUCKET = "wal"
Environ = dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


@dataclass
class Faults:
    """The server's faults. While `before_answer` is not set, every request waits."""

    down: bool = False
    full: bool = False
    truncate_puts: bool = False  # stores half of what it was given, and says that all is well
    cut_answers: bool = False  # sends less than its Content-Length promises
    delay_s: float = 0.0
    before_answer: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.before_answer.set()


class FaultyS3:
    """The WSGI application: moto, with the faults before it."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.requests: list[tuple[str, str]] = []
        self.honest: Application = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        self.faults.before_answer.wait(LIMIT_S)
        threading.Event().wait(self.faults.delay_s)
        if self.faults.down:
            start_response("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        if method == "PUT":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            if self.faults.full:
                text = b"<Error><Code>QuotaExceeded</Code><Message>full</Message></Error>"
                start_response("403 Forbidden", [("Content-Length", str(len(text)))])
                return [text]
            if self.faults.truncate_puts and len(body) > 1:
                body = body[: len(body) // 2]
            for name in [n for n in environ if n.startswith("HTTP_X_AMZ_CHECKSUM")]:
                del environ[name]
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        if method == "GET" and self.faults.cut_answers:
            return self._cut(environ, start_response)
        return self.honest(environ, start_response)

    def _cut(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        kept: dict[str, Any] = {}

        def keep(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            kept.update(status=status, headers=headers)

        body = b"".join(self.honest(environ, keep))
        start_response(kept["status"], kept["headers"])
        return [body[: len(body) // 2]]


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:
        """Log no request: tests look at `requests`."""


@dataclass
class S3Server:
    """`url` and `environment` are what a client needs; at `honest_port` nothing goes wrong."""

    s3: FaultyS3
    port: int
    honest_port: int

    @property
    def faults(self) -> Faults:
        return self.s3.faults

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/prefix"

    @property
    def environment(self) -> dict[str, str]:
        return self.environment_at(self.port)

    def environment_at(self, port: int) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server with an empty bucket."""
    s3 = FaultyS3()
    with serving(s3) as port, serving(s3.honest) as honest_port:
        make_bucket(honest_port)
        try:
            yield S3Server(s3, port, honest_port)
        finally:
            s3.faults.before_answer.set()


@contextmanager
def serving(application: Application) -> Iterator[int]:
    """Serve on loopback, and yield the port."""
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    assert isinstance(server, ThreadedWSGIServer), f"{server=}"
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="S3 server", daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_bucket(port: int) -> None:
    """Make the only bucket of a server, which is emptied first."""
    base = f"http://127.0.0.1:{port}"
    urllib.request.urlopen(
        urllib.request.Request(f"{base}/moto-api/reset", method="POST"), timeout=10
    ).close()
    urllib.request.urlopen(
        urllib.request.Request(f"{base}/{BUCKET}", method="PUT"), timeout=10
    ).close()
