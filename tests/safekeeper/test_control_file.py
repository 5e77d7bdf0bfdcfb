"""The control file, its envelope, and the fields that it shares with the wire."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from walkeeper_common.errors import CorruptWal, RemoteProtocolError
from walkeeper_common.history import HISTORY_ENTRIES_MAX, NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.quorum import MEMBERS_MAX, Configuration, LogKind
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.storage import control_file
from walkeeper_safekeeper.storage.control_file import decode, encode
from walkeeper_safekeeper.storage.sealed_file import seal, unseal

MEMBERS = ("1#" + "ab" * 16, "2#" + "cd" * 16, "3#" + "ef" * 16)
PREPARED = Durable(acceptor_id=3, incarnation=bytes(range(16)), log_uuid=bytes(range(16, 32)))
FULL = replace(
    PREPARED,
    configuration=Configuration(
        generation=1,
        log_uuid=bytes(range(16, 32)),
        system_id=2**64 - 1,
        segment_bytes=1 << 30,
        server_version="15.18 (Debian 15.18-0+deb12u1) - ü",
        kind=LogKind.PHYSICAL,
        creation_lsn=Lsn(1 << 30),
        timeline=2**32 - 1,
        members=MEMBERS,
        ack_quorum=2,
    ),
    ballot=Ballot(2**64 - 1, b"\xff" * 16),
    history=(
        Fragment(NO_BALLOT, Lsn(1 << 30), 1, False, MEMBERS, 2, folded_lsn=Lsn(5 << 30)),
        Fragment(Ballot(7, b"p" * 16), Lsn(5 << 30), 2, True, (), 0),
    ),
    commit_lsn=Lsn(6 << 30),
    restart_lsn=Lsn(5 << 30),
    reached_lsn=LSN_MAX,
    truncating_to=Lsn(0),
    suspect_from=LSN_MAX,
    clean_stop=True,
)

LATE = replace(FULL, base_lsn=Lsn(5 << 30), donors=("h1:5454", "[::1]:5454"))


@pytest.mark.parametrize("durable", [PREPARED, FULL, LATE, replace(LATE, donors=())])
def test_a_durable_promise_comes_back(durable: Durable) -> None:
    assert decode(encode(durable), "control") == durable


def test_every_flipped_bit_is_noticed() -> None:
    data = encode(FULL)
    for position in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptWal, match="main/control"):
            decode(bytes(flipped), "main/control")


def test_every_other_length_is_noticed() -> None:
    data = encode(FULL)
    for size in range(len(data)):
        with pytest.raises(CorruptWal, match="control"):
            decode(data[:size], "control")
    with pytest.raises(CorruptWal, match="bytes long"):
        decode(data + b"\0", "control")


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(CorruptWal, match=r"may not vote again under this incarnation.*replace"):
        decode(b"", "control")


def test_an_unknown_version_is_refused() -> None:
    _, body = unseal(control_file.MAGIC, {1}, encode(FULL), "control")
    with pytest.raises(CorruptWal, match="format version 4; this program knows 1, 2, 3"):
        decode(seal(control_file.MAGIC, 4, body), "control")


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(CorruptWal, match="another kind of file"):
        decode(seal(b"WKSLOTS\0", 1, b"x"), "control")


def test_well_sealed_nonsense_is_refused() -> None:
    _, body = unseal(control_file.MAGIC, {1}, encode(FULL), "control")
    random = Random(1)
    for size in [*range(len(body)), len(body) + 1]:
        data = seal(control_file.MAGIC, 1, body[:size] + bytes(max(0, size - len(body))))
        with pytest.raises(CorruptWal, match="wrong fields"):
            decode(data, "control")
    for _ in range(2000):
        noise = random.randbytes(random.randrange(200))
        with pytest.raises(CorruptWal):
            decode(seal(control_file.MAGIC, 1, noise), "control")


def test_lists_are_bounded_before_they_are_read() -> None:
    fields = Writer()
    fields.u32(HISTORY_ENTRIES_MAX + 1)
    with pytest.raises(RemoteProtocolError, match="maximum"):
        Reader(fields.finish()).history()
    with pytest.raises(RemoteProtocolError, match="maximum"):
        Reader(bytes([MEMBERS_MAX + 1])).members()
    with pytest.raises(RemoteProtocolError, match="maximum"):
        Reader(b"\xff\xff\xff\xff").blob()


def test_a_reader_refuses_values_that_no_writer_writes() -> None:
    with pytest.raises(RemoteProtocolError, match="boolean"):
        Reader(b"\x02").boolean()
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        Reader(b"\x00\x01\xff").text()
    with pytest.raises(RemoteProtocolError, match="trailing"):
        Reader(b"\x00").done()
    with pytest.raises(AssertionError):
        Writer().u8(256)
    with pytest.raises(AssertionError):
        Writer().text("x" * 65536)
