"""An owner of a framed connection that does nothing with what arrives."""

from __future__ import annotations

from walkeeper_common.wire.framing import Message


class Silent:
    """An owner that only listens."""

    def on_frames(self, memory: bytearray, size: int) -> int:
        return 0

    def on_message(self, message: Message) -> None: ...
    def on_closed(self, reason: str) -> None: ...
