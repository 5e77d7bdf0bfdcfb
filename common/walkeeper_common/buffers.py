"""The type of bytes that are passed on without a copy. Pure."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
