"""The first and the last file of a restore: PostgreSQL waits for a whole command there."""

from __future__ import annotations

import subprocess
import sys
from typing import cast

import pytest

from tests.support.waiting import LIMIT_S
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper

MB = 1 << 20
IMPORTS = """
import sys
from walkeeper_restore import entry
from walkeeper_cli.program import cli
from walkeeper_cli.commands.restore import command
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_restore import restoring, wal_source
use_credentials(None)
heavy = {
    "asyncio", "concurrent.futures", "crc32c", "importlib.metadata", "logging", "ssl", "subprocess",
    "tempfile", "tomllib", "walkeeper_common.postgres.pgwire",
}
found = heavy & set(sys.modules)
sys.exit(str(found) if found else 0)
"""


def test_a_request_for_a_segment_imports_only_what_it_needs() -> None:
    """These modules take as long to load as all others together."""
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def test_no_wal_is_taken_without_its_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard makes a 126 of the ImportError."""
    monkeypatch.setitem(sys.modules, "walkeeper_common.wire.wal_crc", None)
    with pytest.raises(ImportError):
        next(Safekeeper.read(cast(Safekeeper, None), Lsn(0), Lsn(MB)))
