"""The fields that frames on the wire and files on disk are made of: one codec for both. Pure.

Fields are big-endian, explicit, and in the order in which they are written. A text has a u16 length
and is UTF-8, a blob has a u32 length, a list has a u32 count. Tags and versions are not here: the
writer of a frame or a file puts them first.

`Writer` refuses values that do not fit with an AssertionError: they are our own. `Reader` trusts no
peer. It checks every length, count and value against the remaining bytes and against a maximum. Its
only exception is RemoteProtocolError, with the offset. `control_file` turns that into an error that
names the file. `Reader` reads no byte beyond the buffer, and `done()` refuses trailing bytes.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import (
    HISTORY_ENTRIES_MAX,
    PROPOSER_ID_BYTES,
    TIMELINE_FILE_BYTES_MAX,
    Ballot,
    Fragment,
    History,
)
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import (
    MEMBER,
    MEMBERS_MAX,
    Configuration,
    LogKind,
    MemberSet,
    is_plain_replacement,
    replaced_set,
)

TEXT_BYTES_MAX = 65535
BLOB_BYTES_MAX = 1 << 26
UUID_BYTES = 16
_IS_CHANGED = 0x80  # beside an ack quorum (at most MEMBERS_MAX): a replacement follows
_HAS_TARGET = 0x40  # any other change follows; versions before it refuse such an ack quorum
_HAS_FEATURES = 0xC0  # a byte of features follows, then their fields; earlier versions refuse both
_LEARNING = 1  # a feature: a change follows, whose newcomers are in no set
_SPARES = 2  # a feature: the address and the spares follow, after a target if there is one
_JOINT = 4  # beside another feature: a target follows, which decides as well
_ZONES = 8  # a feature: the zones of each set follow, after the address or target, and the spares
_LATE = 16  # a feature without fields, by which a log may begin late
_FEATURES = (
    _LEARNING,
    *(
        late | zones | spares | phase
        for late in (0, _LATE)
        for zones in (0, _ZONES)
        for spares in (0, _SPARES)
        for phase in (0, _LEARNING, _JOINT)
        if late | zones | spares
    ),
)
# A fragment's flags. The seal was a boolean before there were files. Earlier versions refuse a
# closed one, and one that names its generation.
_SEALED, _HAS_FILE, _FOLDED, _CLOSED, _NUMBERED = 1, 2, 4, 8, 16
_OF_FRAGMENT = _SEALED | _HAS_FILE | _FOLDED | _CLOSED | _NUMBERED

_U8, _U16, _U32, _U64 = Struct("!B"), Struct("!H"), Struct("!I"), Struct("!Q")


class Writer:
    """Collects fields; `bytes(writer)` or `finish()` returns the bytes. Never blocks."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def finish(self) -> bytes:
        return bytes(self._buffer)

    __bytes__ = finish

    def __len__(self) -> int:
        return len(self._buffer)

    def _integer(self, layout: Struct, value: int) -> None:
        assert 0 <= value < 1 << 8 * layout.size, f"{value=} {layout.size=}"
        self._buffer += layout.pack(value)

    def u8(self, value: int) -> None:
        self._integer(_U8, value)

    def u16(self, value: int) -> None:
        self._integer(_U16, value)

    def u32(self, value: int) -> None:
        self._integer(_U32, value)

    def u64(self, value: int) -> None:
        self._integer(_U64, value)

    def boolean(self, value: bool) -> None:
        self._integer(_U8, 1 if value else 0)

    def lsn(self, value: Lsn) -> None:
        self._integer(_U64, value)

    def optional_lsn(self, value: Lsn | None) -> None:
        self.boolean(value is not None)
        if value is not None:
            self.lsn(value)

    def raw(self, value: Buffer, size: int) -> None:
        """Append exactly `size` bytes, without a length before them."""
        assert len(value) == size, f"{len(value)=} {size=}"
        self._buffer += value

    def text(self, value: str) -> None:
        encoded = value.encode()
        assert len(encoded) <= TEXT_BYTES_MAX, f"{len(encoded)=} {TEXT_BYTES_MAX=}"
        self._integer(_U16, len(encoded))
        self._buffer += encoded

    def prose(self, value: str) -> None:
        """Append a text for people, which may quote a peer's bytes; cut it off to what fits."""
        encoded = value.encode(errors="replace")[:TEXT_BYTES_MAX]
        self.text(encoded.decode(errors="ignore"))

    def blob(self, value: Buffer) -> None:
        assert len(value) <= BLOB_BYTES_MAX, f"{len(value)=} {BLOB_BYTES_MAX=}"
        self._integer(_U32, len(value))
        self._buffer += value

    def ballot(self, value: Ballot) -> None:
        self.u64(value.term)
        self.raw(value.proposer_id, PROPOSER_ID_BYTES)

    def members(self, value: tuple[str, ...]) -> None:
        assert len(value) <= MEMBERS_MAX, f"{len(value)=} {MEMBERS_MAX=}"
        self.u8(len(value))
        for member in value:
            self.text(member)

    def fragment(self, value: Fragment) -> None:
        self.ballot(value.ballot)
        self.lsn(value.start_lsn)
        self.u32(value.timeline)
        self.u8(
            (_SEALED if value.sealed else 0)
            | (_HAS_FILE if value.timeline_file else 0)
            | (_FOLDED if value.folded_lsn else 0)
            | (_CLOSED if value.closed else 0)
            | (_NUMBERED if value.generation else 0)
        )
        self.members(value.members)
        self.u8(value.ack_quorum)
        if value.timeline_file:
            self.blob(value.timeline_file)
        if value.folded_lsn:
            self.lsn(value.folded_lsn)
        if value.generation:
            self.u64(value.generation)

    def history(self, value: History) -> None:
        assert len(value) <= HISTORY_ENTRIES_MAX, f"{len(value)=} {HISTORY_ENTRIES_MAX=}"
        self.u32(len(value))
        for fragment in value:
            self.fragment(fragment)

    def configuration(self, value: Configuration) -> None:
        self.u64(value.generation)
        self.raw(value.log_uuid, UUID_BYTES)
        self.u64(value.system_id)
        self.u32(value.segment_bytes)
        self.text(value.server_version)
        self.u8(value.kind.value)
        self.lsn(value.creation_lsn)
        self.u32(value.timeline)
        self.members(value.members)
        if value.spares or value.uses_zones or value.begins_late:
            self.u8(value.ack_quorum | _HAS_FEATURES)
            self._with_features(value)
            return
        if value.is_learning:
            self.u8(value.ack_quorum | _HAS_FEATURES)
            self.u8(_LEARNING)
            self._change(value)
            return
        if value.target is not None and not is_plain_replacement(value):
            self.u8(value.ack_quorum | _HAS_TARGET)
            self._change(value)
            return
        change = (value.leaving, value.joining, value.address)
        self.u8(value.ack_quorum | (_IS_CHANGED if any(change) else 0))
        if any(change):
            for text in change:
                self.text(text)

    def _with_features(self, value: Configuration) -> None:
        phase = _LEARNING if value.is_learning else _JOINT if value.target is not None else 0
        spares, zones = _SPARES if value.spares else 0, _ZONES if value.uses_zones else 0
        self.u8(phase | spares | zones | (_LATE if value.begins_late else 0))
        if phase:
            self._change(value)
        else:
            self.text(value.address)
        if spares:
            self.members(value.spares)
        if zones:
            for each in (value.present, value.target) if value.target else (value.present,):
                self.u8(each.ack_zones)
                self.members(each.zones)

    def _change(self, value: Configuration) -> None:
        assert value.target is not None, f"{value=}"
        self.members(value.target.members)
        self.u8(value.target.ack_quorum)
        self.text(value.address)

    def optional_configuration(self, value: Configuration | None) -> None:
        self.boolean(value is not None)
        if value is not None:
            self.configuration(value)


class Reader:
    """Takes fields from the front of `buffer`, in the order in which `Writer` put them."""

    __slots__ = ("_buffer", "_offset")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = memoryview(buffer).cast("B")
        self._offset = 0

    @property
    def remaining(self) -> int:
        return len(self._buffer) - self._offset

    def done(self) -> None:
        """Refuse trailing bytes: a longer frame comes from a peer that means something else."""
        if self.remaining:
            raise self._error(f"{self.remaining} trailing bytes")

    def view(self, size: int, what: str = "bytes") -> memoryview:
        """Return the next `size` bytes, not copied: the view is valid as long as the buffer is."""
        if size > self.remaining:
            raise self._error(f"{what} needs {size} bytes, {self.remaining} are left")
        begin, self._offset = self._offset, self._offset + size
        return self._buffer[begin : self._offset]

    def _error(self, text: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"malformed message: {text} at byte {self._offset}")

    def _integer(self, layout: Struct) -> int:
        value = layout.unpack(self.view(layout.size, "an integer"))[0]
        assert isinstance(value, int)
        return value

    def u8(self) -> int:
        return self._integer(_U8)

    def u16(self) -> int:
        return self._integer(_U16)

    def u32(self) -> int:
        return self._integer(_U32)

    def u64(self) -> int:
        return self._integer(_U64)

    def boolean(self) -> bool:
        value = self.u8()
        if value > 1:
            raise self._error(f"a boolean is {value}")
        return value == 1

    def lsn(self) -> Lsn:
        return Lsn(self.u64())

    def optional_lsn(self) -> Lsn | None:
        return self.lsn() if self.boolean() else None

    def raw(self, size: int) -> bytes:
        return bytes(self.view(size))

    def text(self) -> str:
        encoded = self.view(self.u16(), "a text")
        try:
            return str(encoded, "utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"a text is not UTF-8 ({error.reason})") from error

    def blob(self, bytes_max: int = BLOB_BYTES_MAX) -> bytes:
        size = self.u32()
        if size > bytes_max:
            raise self._error(f"a blob of {size} bytes, the maximum is {bytes_max},")
        return bytes(self.view(size, "a blob"))

    def ballot(self) -> Ballot:
        return Ballot(self.u64(), self.raw(PROPOSER_ID_BYTES))

    def members(self) -> tuple[str, ...]:
        count = self.u8()
        if count > MEMBERS_MAX:
            raise self._error(f"{count} members, the maximum is {MEMBERS_MAX},")
        return tuple(self.text() for _ in range(count))

    def fragment(self) -> Fragment:
        ballot, start_lsn, timeline, flags = self.ballot(), self.lsn(), self.u32(), self.u8()
        if flags & ~_OF_FRAGMENT:
            raise self._error(f"the flags of a fragment are {flags}")
        members, ack_quorum = self.members(), self.u8()
        file = self.blob(TIMELINE_FILE_BYTES_MAX) if flags & _HAS_FILE else b""
        if flags & _HAS_FILE and not file:
            raise self._error("an empty history file")
        folded_lsn = self.lsn() if flags & _FOLDED else ZERO_LSN
        if flags & _FOLDED and not folded_lsn:
            raise self._error("a history that is folded below 0/0")
        generation = self.u64() if flags & _NUMBERED else 0
        if flags & _NUMBERED and not generation:
            raise self._error("a fragment of generation 0")
        return Fragment(
            ballot=ballot,
            start_lsn=start_lsn,
            timeline=timeline,
            sealed=bool(flags & _SEALED),
            members=members,
            ack_quorum=ack_quorum,
            timeline_file=file,
            folded_lsn=folded_lsn,
            closed=bool(flags & _CLOSED),
            generation=generation,
        )

    def history(self) -> History:
        count = self.u32()
        if count > HISTORY_ENTRIES_MAX:
            raise self._error(f"a history of {count}, the maximum is {HISTORY_ENTRIES_MAX},")
        return tuple(self.fragment() for _ in range(count))

    def configuration(self) -> Configuration:
        generation, log_uuid, system_id = self.u64(), self.raw(UUID_BYTES), self.u64()
        segment_bytes, server_version, kind = self.u32(), self.text(), self._log_kind()
        creation_lsn, timeline, members = self.lsn(), self.u32(), self.members()
        quorum = self.u8()
        final = Configuration(
            generation,
            log_uuid,
            system_id,
            segment_bytes,
            server_version,
            kind,
            creation_lsn,
            timeline,
            members,
            quorum & ~(_IS_CHANGED | _HAS_TARGET),
        )
        if quorum & _HAS_FEATURES == _HAS_FEATURES:
            return self._features(final)
        if quorum & _HAS_TARGET:
            return self._change(final)
        return self._replacement(final) if quorum & _IS_CHANGED else final

    def _change(self, final: Configuration) -> Configuration:
        target = MemberSet(self.members(), self.u8())
        return replace(final, target=target, address=self.text())

    def _features(self, final: Configuration) -> Configuration:
        features = self.u8()
        if features not in _FEATURES:
            text = "a newer version of walkeeper wrote it; run that version here"
            raise self._error(f"the features of a configuration are {features}: {text}")
        final = replace(final, begins_late=bool(features & _LATE))
        if features & (_LEARNING | _JOINT):
            changed = replace(self._change(final), is_learning=bool(features & _LEARNING))
        else:
            changed = replace(final, address=self.text())
        if features & _SPARES:
            changed = replace(changed, spares=self.members())
            if not changed.spares:
                raise self._error("an empty list of spares")
        if features & _ZONES:
            changed = replace(changed, ack_zones=self.u8(), zones=self.members())
            if changed.target is not None:
                target = replace(changed.target, ack_zones=self.u8(), zones=self.members())
                changed = replace(changed, target=target)
        if changed.uses_zones != bool(features & _ZONES):
            raise self._error("zones that the features do not tell of, or the other way round")
        return changed

    def _replacement(self, final: Configuration) -> Configuration:
        leaving, joining, address = self.text(), self.text(), self.text()
        if not leaving and not joining:
            if not address:
                raise self._error("an empty change of members")
            return replace(final, address=address)
        if leaving not in final.members or joining in final.members:
            raise self._error(f"{leaving[:60]!r} replaced by {joining[:60]!r}")
        if not all(MEMBER.fullmatch(member) for member in (*final.members, joining)):
            raise self._error("a member is not named id#incarnation")
        target = replaced_set(final.present, leaving=leaving, joining=joining)
        return replace(final, target=target, address=address)

    def _log_kind(self) -> LogKind:
        value = self.u8()
        try:
            return LogKind(value)
        except ValueError as error:
            raise self._error(f"unknown kind of log {value}") from error

    def optional_configuration(self) -> Configuration | None:
        return self.configuration() if self.boolean() else None
