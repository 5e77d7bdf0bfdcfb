"""What the fuzzer keeps is replayed, each target can fail, and what it found stays found.

Needs no atheris: a kept input is a file, a target a function. `python -m tests.fuzz` searches.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.acceptor_stage import AcceptorStage
from tests.fuzz.framed import frame_of
from tests.proposer_stage import ProposerStage
from tests.scenario_words import CREATION_LSN, LOG_UUID, configuration_of, incarnation_of
from walkeeper_common.errors import Refused
from walkeeper_common.framing import decode
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.messages import AcceptorGreeting, Reject, RejectCode, VoteRequest
from walkeeper_common.quorum import Configuration
from walkeeper_common.requests import PrepareLog
from walkeeper_proposer.greetings import unwelcome
from walkeeper_safekeeper.acceptor_events import Persist, Received, Send, StorageFailed
from walkeeper_safekeeper.creation import configured, prepared

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


THREE = configuration_of(3)
NO_LOG_HAS = {
    "generation": replace(THREE, generation=2**32),  # a VoteResponse has 32 bits for it
    "no generation": replace(THREE, generation=0),
    "ack quorum": replace(THREE, ack_quorum=255),  # IndexError at the first acknowledgement
    "no ack quorum": replace(THREE, ack_quorum=0),
    "version": replace(THREE, server_version="PostgreSQL 15"),  # assertion at the next client
    "long version": replace(THREE, server_version="1" * 5000),
    "member": replace(THREE, members=(*THREE.members, "x")),
}


@pytest.mark.parametrize("configuration", NO_LOG_HAS.values(), ids=list(NO_LOG_HAS))
def test_a_configuration_that_no_log_can_have_ends_nobody(configuration: Configuration) -> None:
    """A safekeeper does not adopt it, and a proposer does not follow one that says it has it."""
    fresh = prepared(None, PrepareLog("main", LOG_UUID), acceptor_id=1, incarnation=b"\1" * 16)
    with pytest.raises(Refused):
        configured(fresh, configuration)
    creation = Fragment(NO_BALLOT, CREATION_LSN, 1, False, configuration.members, 2)
    greeting = AcceptorGreeting(
        1, incarnation_of(1), LOG_UUID, configuration, NO_BALLOT, (creation,), CREATION_LSN,
        CREATION_LSN, CREATION_LSN, CREATION_LSN, None,
    )  # fmt: skip
    said = unwelcome(greeting, None, twin=False)
    assert said is not None and "no log can have" in said


def test_a_proposer_that_hears_of_the_last_term_stops_with_a_reason() -> None:
    """A vote for a term that no field can hold was an assertion."""
    stage = ProposerStage()
    stage.run("proposer a settle=yes take_over=yes")
    lines = ["link 1", "link 2", f"greeting 1 flush=0/100000 ballot={2**64 - 1}:x"]
    for line in lines:
        assert "Stop" not in stage.run(line)
    stopped = stage.run("greeting 2 flush=0/100000")
    assert stopped.startswith(f"Stop refused: no ballot is greater than {2**64 - 1}:"), stopped


def test_a_promise_that_could_not_be_made_durable_is_never_spoken_of() -> None:
    """The Reject after a failed write of the control file named the ballot that was not on disk."""
    acceptor = acceptor_of_three()
    ask = VoteRequest(1, BALLOT, LOG_UUID, acceptor.member)
    persist, *_ = acceptor.step(Received(1, ask))
    assert isinstance(persist, Persist) and persist.state.ballot == BALLOT
    said = [e.message for e in acceptor.step(StorageFailed("failed")) if isinstance(e, Send)]
    said += [e.message for e in acceptor.step(Received(2, ask)) if isinstance(e, Send)]
    assert [m.ballot for m in said if isinstance(m, Reject)] == [NO_BALLOT] * len(said) != []
