"""The reasons why a walk over records ends. Without numpy, so that a count starts fast. Pure."""

from __future__ import annotations

from enum import IntEnum


class Stop(IntEnum):
    """The reason why a walk ended. The first four are not errors."""

    END = 0  # everything that was requested
    FULL = 1  # the buffers are full; go on from stop_offset
    SWITCH = 2  # after an XLOG_SWITCH; the rest of the segment is padding
    ZERO = 3  # zeros where a record would start
    INCOMPLETE = 4  # the payload ends inside a record
    LENGTH = 5
    PREV_LINK = 6
    CRC = 7
    HEADERS = 8  # block headers that do not add up
