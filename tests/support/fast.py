"""The compiled fast path in tests; they need it built, and say so where it is not."""

from __future__ import annotations

import pytest

from walkeeper_fastpath.ports import Answering, FastAppends
from walkeeper_fastpath.switch import append_path, state
from walkeeper_safekeeper.consensus.expected_append import ExpectedAppend
from walkeeper_safekeeper.storage.open_tail import Tail

NEEDS_FAST_PATH = pytest.mark.skipif(
    append_path() is None, reason=f"the compiled fast path is {state()}"
)


def made_path(expected: ExpectedAppend, tail: Tail, answer: Answering) -> FastAppends:
    """Make the compiled fast path of a leader's appends."""
    make = append_path()
    assert make is not None, state()
    return make(expected, tail, answer)
