"""The CRC-32C of WAL in flight; a safekeeper checks it before it writes (BookKeeper BP-31). Pure.

The package crc32c imports importlib.metadata, which takes 20 ms of CPU time. So a `restore` without
WAL to check does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable

from crc32c import crc32c

from walkeeper_common.buffers import Buffer

crc_of: Callable[[Buffer], int] = crc32c
