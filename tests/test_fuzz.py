"""What the fuzzer keeps is replayed, each target can fail, and what it found stays found.

Needs no atheris: a kept input is a file, a target a function. `python -m tests.fuzz` searches.
"""

from __future__ import annotations

from tests.acceptor_stage import AcceptorStage
from tests.fuzz.framed import frame_of
from tests.scenario_words import LOG_UUID
from walkeeper_common.framing import decode
from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.messages import Reject, RejectCode, VoteRequest
from walkeeper_safekeeper.acceptor_events import Received, Send

BALLOT = Ballot(1, b"p" * 16)


# What was found


def acceptor_of_three():
    stage = AcceptorStage()
    stage.run("acceptor flush=0/100000")
    return stage.acceptor


def test_a_reject_that_quotes_a_long_name_fits_into_a_frame() -> None:
    """A vote asked of a member whose name has 65535 bytes ended the safekeeper."""
    ask = VoteRequest(1, BALLOT, LOG_UUID, "m" * 65535)
    (answer,) = acceptor_of_three().step(Received(1, ask))
    assert isinstance(answer, Send)
    frame = frame_of(answer.message)
    said = decode(frame[4], memoryview(frame)[5:])
    assert isinstance(said, Reject) and said.code is RejectCode.NOT_A_MEMBER
    assert said.text.startswith("asked as mmmm")


def test_a_reject_is_cut_between_characters_and_survives_odd_file_names() -> None:
    for text in ("ü" * 65535, "x" + "\U0001f40d" * 30000, "file \udcff", "\0" * 70000):
        frame = frame_of(Reject(RejectCode.REFUSED, text, NO_BALLOT))
        said = decode(frame[4], memoryview(frame)[5:])
        assert isinstance(said, Reject)
        assert text.replace("\udcff", "?").startswith(said.text) and len(said.text) >= 6
