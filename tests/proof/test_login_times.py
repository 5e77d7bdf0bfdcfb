"""A user that exists and one that does not cost a safekeeper the same work, counted and timed."""

from __future__ import annotations

import hmac

import pytest

from tests.proof.login_times import KNOWN, UNKNOWN, refused_s, verdict
from tests.safekeeper.test_password_login import USERS, FixedUsers
from tests.support.served_port import Served, with_port
from walkeeper_safekeeper.server import PlainPeers


def test_a_whole_login_takes_the_same_steps_for_a_name_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for one of the two names alone would show which users there are."""
    digest, hashed = hmac.digest, list[int]()

    def note(key: bytes, message: bytes, name: str) -> bytes:
        hashed.append(len(message))
        return digest(key, message, name)

    async def story(served: Served) -> None:
        await refused_s(served.port, KNOWN)  # the first login makes what the others share
        steps = {}
        for name in (KNOWN, UNKNOWN):
            hashed.clear()
            await refused_s(served.port, name)
            steps[name] = list(hashed)
        assert steps[KNOWN] == steps[UNKNOWN] != []

    monkeypatch.setattr(hmac, "digest", note)
    with_port(story, None, users=FixedUsers(USERS), plain=PlainPeers())


@pytest.mark.parametrize(
    ("unknown_s", "is_told_apart"), [(1.0, False), (1.04, False), (1.06, True), (0.94, True)]
)
def test_a_difference_of_more_than_a_twentieth_tells_names_apart(
    unknown_s: float, is_told_apart: bool
) -> None:
    text, is_large = verdict([(1.0, unknown_s)] * 99 + [(1.0, 100.0)])
    assert is_large is is_told_apart and "of 100 pairs" in text
