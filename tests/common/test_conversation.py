"""A client's conversation with a safekeeper, without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from walkeeper_common.access.identity import ANYBODY
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.wire.conversation import Closed, Conversation
from walkeeper_common.wire.framing import PREFACE, Message, encode
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import LogQuery, LogState

QUESTION = LogQuery("main")
STATE = LogState(2, b"i" * 16, b"u" * 16, NO_BALLOT, None)


def take(conversation: Conversation, data: bytes) -> list[Message]:
    conversation.buffer()[: len(data)] = data
    return list(conversation.received(len(data)))


def test_the_preface_precedes_the_first_question_alone() -> None:
    conversation = Conversation(ANYBODY)
    frame = b"".join(encode(QUESTION))
    assert [conversation.ask(QUESTION) for _ in range(2)] == [PREFACE + frame, frame]


def test_answers_come_whole_from_single_bytes() -> None:
    conversation, reject = Conversation(ANYBODY), Reject(RejectCode.REFUSED, "no", NO_BALLOT)
    sent = b"".join((*encode(STATE), *encode(reject)))
    found = [each for at in range(len(sent)) for each in take(conversation, sent[at : at + 1])]
    assert found == [STATE, reject]


def test_the_end_and_foreign_bytes_are_errors() -> None:
    with pytest.raises(Closed, match="without an answer"):
        take(Conversation(ANYBODY), b"")
    with pytest.raises(RemoteProtocolError):
        take(Conversation(ANYBODY), b"HTTP/1.1 400 Bad Request\r\n")


def test_a_safekeeper_that_states_the_id_of_another_is_refused() -> None:
    """A host with the file of safekeeper 1 could answer as safekeeper 2."""
    conversation = Conversation(replace(ANYBODY, safekeeper_id=1))
    with pytest.raises(Refused, match="its certificate is that of safekeeper 1"):
        take(conversation, b"".join(encode(STATE)))
