"""START_REPLICATION … LOGICAL: whole committed transactions to one consumer.

    check_options(settings, options)    what a consumer asks of pgoutput, or a reason to refuse it
    await LogicalStream(…).run()        returns when both sides have sent CopyDone

Contract: a transaction is sent when its last byte is committed, so no sent byte is ever taken back.
Transactions go out in commit order. The stream sends none twice that the consumer's slot or start
LSN has. It keeps the primary's messages and positions. The flushed position of a consumer moves its
slot, never past the sent WAL. So a slot stays within the log, whatever LSN a consumer asks for or
confirms. A walsender lets a consumer confirm any LSN. Time limits, keepalives and the handling of a
silent consumer are WalStream's.

Transactions are kept as CopyData messages, so a frame goes out as it lies there. A large
transaction's frames end anywhere, so the stream sends their whole messages. Only in the segment of
the first transaction its messages are looked at, for relations described before it. The stream
looks at all messages if the consumer does not want all that the log has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from walkeeper_common.buffers import Buffer
from walkeeper_common.entries import EntryKind, Frame
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgoutput import MESSAGE, WholeMessages, has_origin
from walkeeper_common.postgres.pgwire import (
    HotStandbyFeedback,
    Keepalive,
    SqlRefused,
    StandbyStatus,
    command_complete,
    copy_data,
)
from walkeeper_common.postgres.replication_commands import parse_boolean
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.log_settings import LogSettings, check_publications
from walkeeper_safekeeper.replication.logical_log import (
    Describer,
    EntryCursor,
    LogicalReader,
)
from walkeeper_safekeeper.replication.served_log import ReaderState, ServedLog
from walkeeper_safekeeper.replication.transcoding import transcoded_messages
from walkeeper_safekeeper.replication.wal_stream import StreamEnded, StreamLimits, WalStream

KNOWN = frozenset(
    {
        "proto_version", "publication_names", "binary", "streaming", "two_phase", "origin",
        "messages",
    }
)  # fmt: skip
MESSAGES_HINT = (
    "Start the log's proposer with --messages; what is written from then on can be asked for."
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The part of the log that a consumer does not want."""

    local_only: bool = False  # origin = none: only what was first written at the primary
    without: frozenset[int] = frozenset()  # kinds of messages
    two_phase: bool = False  # it would take prepared transactions, which the log lacks

    @property
    def is_everything(self) -> bool:
        return not self.local_only and not self.without


EVERYTHING = Wishes()


def check_options(settings: LogSettings, options: Mapping[str, str]) -> Wishes:
    """Check the options as pgoutput does, and refuse options that the log does not fulfil."""
    for needed in ("proto_version", "publication_names"):
        if needed not in options:
            raise SqlRefused("22023", f"option {needed} missing")
    if not options["proto_version"].isdecimal():
        raise SqlRefused("22023", f'invalid proto_version "{options["proto_version"]}"')
    for name in options:
        if name not in KNOWN:
            raise SqlRefused("0A000", f"unrecognized pgoutput option: {name}")
    # The message says of each value whether it is binary. pgoutput sends text, too, if a type has
    # no binary form. So text is right for a consumer that asks for binary values.
    parse_boolean(options.get("binary", "off"), "binary requires a Boolean value")
    # A subscription with a copy asks for this when the copy is done. A refusal would leave it with
    # the copy alone. It takes whole transactions as well: a primary before 15 sends it no others.
    two_phase = parse_boolean(options.get("two_phase", "off"), "two_phase requires a Boolean value")
    origin = options.get("origin", "any").lower()
    if origin not in ("any", "none"):
        raise SqlRefused("22023", f'unrecognized origin value: "{origin}"')
    has_messages = settings.options.get("messages") == "true"
    asked_for = parse_boolean(options.get("messages", "off"), "messages requires a Boolean value")
    if asked_for and not has_messages:
        raise SqlRefused("0A000", "this log has no logical decoding messages", hint=MESSAGES_HINT)
    check_publications(split_identifiers(options["publication_names"]), settings.publications)
    unwanted = frozenset({MESSAGE} if has_messages and not asked_for else ())
    return Wishes(local_only=origin == "none", without=unwanted, two_phase=two_phase)


def split_identifiers(text: str) -> list[str]:
    """Split names between commas, quoted or down-cased, as SplitIdentifierString does."""
    names, at, text = [], 0, text.strip()
    while at < len(text):
        if text[at] == '"':
            name = ""
            at += 1
            while at < len(text) and (text[at] != '"' or text[at : at + 2] == '""'):
                at += text[at] == '"'
                name += text[at]
                at += 1
            at += 1
        else:
            end = text.find(",", at)
            end = len(text) if end < 0 else end
            name, at = text[at:end].strip().lower(), end
        names.append(name)
        rest = text[at:].lstrip()
        if rest and rest[0] != ",":
            raise SqlRefused("22023", "invalid publication_names syntax")
        at = len(text) - len(rest[1:].lstrip())
        if rest and at == len(text):
            names.append("")  # no name follows the comma
    if not names or not all(names):
        raise SqlRefused("22023", "invalid publication_names syntax")
    return names


class LogicalStream(WalStream):
    """One START_REPLICATION; `start` is the position of the segment where reading begins."""

    def __init__(
        self,
        log: ServedLog,
        client: ClientConnection,
        reader: LogicalReader,
        start: Lsn,
        wishes: Wishes = EVERYTHING,
        *,
        limits: StreamLimits,
        now: Callable[[], float],
    ) -> None:
        super().__init__(log, client, reader, log.timeline, limits=limits, now=now)
        self._consumer = reader
        self._cursor = EntryCursor(log, start)
        self._wishes = wishes
        self._describer: Describer | None = Describer(wishes.without)
        self._parts = WholeMessages()  # the messages of the entry that goes on
        self._is_inside = False  # an entry's first frame was seen, its last not yet
        self._segment = start  # where the entry that goes on began
        self._first_segment: Lsn | None = None  # where the first entry that was sent began
        self._is_wanted = False  # the consumer does not have it, and it is whole
        self._is_silent = True  # the stream has sent no byte of the entry that goes on

    async def run(self) -> None:
        """Run as WalStream does; there is no timeline to end."""
        await self._copied()
        self._client.send(command_complete("START_STREAMING"))
        self._client.send(command_complete("START_REPLICATION"))

    def _on_feedback(self, said: StandbyStatus | HotStandbyFeedback) -> None:
        if isinstance(said, HotStandbyFeedback):
            return
        reader = self._consumer
        reader.write_lsn, reader.flush_lsn = said.write_lsn, said.flush_lsn
        reader.replay_lsn, reader.reply_time_us = said.replay_lsn, said.sent_at_us
        if said.reply_requested:
            self._answer_soon()
        assert reader.slot is not None, f"{reader=}"
        if reader.confirmed_lsn:
            self._log.slots.slots.confirm(reader.slot, reader.confirmed_lsn, pid=reader.pid)

    async def _send(self) -> None:
        """Send entries and keepalives, until cancelled."""
        reader, log, cursor = self._consumer, self._log, self._cursor
        reader.state = ReaderState.CATCHUP
        while True:
            if cursor.is_at_end:
                reader.state = ReaderState.STREAMING
                await log.wait_for_readable(cursor.read_position, self._until_next_duty_s())
            else:
                for frame in await self._more(cursor):
                    await self._on_frame(frame)
                await self._client.drain(self._limits.sender_timeout_s)
            await self._do_duties()

    async def _more(self, cursor: EntryCursor) -> list[Frame]:
        """Read more; a cut of an entry that is not whole ends this connection (R7)."""
        reader = self._consumer
        reader.promised_lsn = max(reader.promised_lsn, cursor.next_position)
        frames = await cursor.more()
        if reader.end_reason:
            raise StreamEnded(reader.end_reason)
        return frames

    async def _on_frame(self, frame: Frame) -> None:
        if not self._is_inside and not frame.is_first:
            return  # the entry began before the segment where reading began
        if frame.is_first:
            self._is_inside = self._is_silent = True
            self._parts = WholeMessages()
            self._consumer.position = frame.position
            self._segment = frame.position.round_down(self._log.segment_bytes)
            if self._first_segment not in (None, self._segment) and self._wishes.is_everything:
                self._describer = None  # everything that starts from here on describes itself
            if self._describer is not None:
                self._describer.begin()
        if frame.kind is EntryKind.TRANSACTION and not frame.is_last:
            await self._on_part(frame)
        elif frame.is_last:
            self._is_inside = False
            self._on_last(frame)

    async def _on_part(self, frame: Frame) -> None:
        """Send a large transaction once its last entry shows that it is whole and not abandoned."""
        if frame.is_first:
            self._is_wanted = await self._is_whole_and_new(frame) and self._is_asked_for(frame)
        self._pass_on(frame)

    async def _is_whole_and_new(self, first: Frame) -> bool:
        """Look ahead to the entry's last frame; wait until that is committed."""
        ahead = EntryCursor(self._log, first.position)
        while True:
            for frame in await self._more(ahead):
                if frame.is_last:
                    is_whole = frame.kind is EntryKind.TRANSACTION
                    return is_whole and self._is_new(frame)
            if ahead.is_at_end:
                wait_s = self._until_next_duty_s()
                await self._log.wait_for_readable(ahead.read_position, wait_s)
            await self._do_duties()

    def _is_new(self, last: Frame) -> bool:
        """Return True if the entry ends after what the consumer asked for and was sent.

        A consumer may ask for an LSN beyond the log's end. It gets what commits after that LSN.
        """
        return last.end_lsn > max(self._consumer.begin_lsn, self._consumer.sent_lsn)

    def _is_asked_for(self, first: Frame) -> bool:
        is_change = first.kind is EntryKind.TRANSACTION
        return not (self._wishes.local_only and is_change and has_origin(first.payload))

    def _on_last(self, frame: Frame) -> None:
        reader = self._consumer
        is_new = self._is_new(frame)
        if frame.is_first:
            self._is_wanted = is_new and self._is_asked_for(frame)
        match frame.kind:
            case EntryKind.TRANSACTION:
                self._pass_on(frame)
                reader.sent_lsn = max(reader.sent_lsn, frame.end_lsn)
                if is_new and self._is_silent:  # so that its slot moves all the same
                    self._send_keepalive(reply_requested=False)
            case EntryKind.PROGRESS:
                reader.sent_lsn = max(reader.sent_lsn, frame.end_lsn)
                if is_new:
                    self._send_keepalive(reply_requested=False)
            case _:
                pass
        reader.position = frame.end_position

    def _pass_on(self, frame: Frame) -> None:
        if not self._is_wanted:
            if self._describer is not None:
                self._describer.skip(frame.payload)
            return
        self._first_segment = self._segment if self._first_segment is None else self._first_segment
        data: Buffer = frame.payload
        if self._describer is not None:
            data = self._describer.complete(frame.payload)
        elif not (frame.is_first and frame.is_last):
            data = self._parts.feed(frame.payload)
        encoding = self._client.encoding
        self._client.send(bytes(data) if encoding.is_utf8 else transcoded_messages(data, encoding))
        self._is_silent = self._is_silent and not data
        self._sent_at_s = self._clock()

    def _send_keepalive(self, *, reply_requested: bool) -> None:
        keepalive = Keepalive(self._consumer.sent_lsn, self._now_us(), reply_requested)
        self._client.send(copy_data(keepalive.pack()))
        self._sent_at_s = self._clock()
