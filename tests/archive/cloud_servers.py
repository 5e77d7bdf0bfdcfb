"""Google Cloud Storage and Azure Blob Storage, as far as they can be had on one machine.

    with gcs_server() as served: …      moto's S3 behind what GCS's XML API calls things
    with azure_server() as served: …    azurite, Microsoft's own emulator, from npm

obstore speaks to GCS by its XML API, which is S3's but for the condition of a put. No emulator in a
registry knows conditions there (fake-gcs-server, gcp-storage-emulator). So this shows that our side
and obstore's speak that API, and nothing about Google's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from tests.support.s3_server import BUCKET, Environ, make_bucket, serving
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_lab.local.tcp_ports import free_port

AZURITE = Path(sys.prefix) / "servers" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"  # azurite's own, known to everybody
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"
# moto takes the service from this header, and checks no signature.
AS_S3 = "AWS4-HMAC-SHA256 Credential=key/20200101/us-east-1/s3/aws4_request, Signature=0"


class GcsFace:
    """A WSGI application: S3's answers to requests in GCS's words."""

    def __init__(self) -> None:
        self._s3 = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        environ["HTTP_AUTHORIZATION"] = AS_S3
        answer: Iterable[bytes] = self._s3(environ, start_response)
        return answer


@contextmanager
def gcs_server(directory: Path) -> Iterator[dict[str, str]]:
    """Yield a client's environment for an empty bucket. `directory` is for a key."""
    with serving(GcsFace()) as port:
        base = f"http://127.0.0.1:{port}"
        make_bucket(port)
        key = {"gcs_base_url": base, "disable_oauth": True, "client_email": "", "private_key": ""}
        (directory / "key.json").write_text(json.dumps({**key, "private_key_id": ""}))
        yield {
            "GOOGLE_SERVICE_ACCOUNT": str(directory / "key.json"),
            "GOOGLE_SKIP_SIGNATURE": "true",
            "GOOGLE_BASE_URL": base,
        }


@contextmanager
def azure_server(directory: Path) -> Iterator[dict[str, str]]:
    """Yield a client's environment for an empty container."""
    port = free_port()
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobPort", str(port)]
    beside = os.path.dirname(sys.executable)  # a Node.js that came as a wheel
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{beside}"}
    command = [str(AZURITE), *options, "--location", str(directory)]
    with open(directory / "azurite.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        wait_until(lambda: _answers(port) or process.poll() is not None)
        assert process.poll() is None, (directory / "azurite.log").read_text()
        _make_container(port)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
        }
    finally:
        process.kill()
        process.wait()


def has_azurite() -> bool:
    """Return True if azurite is there; `make test` installs it."""
    return os.access(AZURITE, os.X_OK)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _make_container(port: int) -> None:
    date = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} GMT"
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{VERSION}\n"
    signed += f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{ACCOUNT}/{BUCKET}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        },
    )
    urllib.request.urlopen(request, timeout=LIMIT_S).close()
