"""A log as its safekeepers serve it: walkeeper://host:port,host:port,host:port/cluster.

    LiveFiles(url)      a WalFiles, whose segments end where the log is committed

Contract: nothing beyond a safekeeper's commit_lsn is seen, so what was seen is never taken back.
Each range comes from the first safekeeper in turn that has it. A listing is the union of the
answers, and fails only if there is none. A reader retains no WAL on a safekeeper. If its retention
removes WAL meanwhile, the error says so. A listed file stands for its range. The last one's name
ends with the LSN up to which it was committed then (archive_names: <segment>.<end LSN>.partial).
So other machines read the same bytes of it. Threads have connections of their own.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, parse_segment_name, segment_name
from walkeeper_common.timelines import timeline_file_name
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.archive_names import archived_file
from walkeeper_wal.sources.safekeeper_link import SafekeeperLink, ServedWal, Unavailable
from walkeeper_wal.sources.segment_timelines import Stretch, parse_history
from walkeeper_wal.sources.wal_files import Pieces
from walkeeper_wal.wal_errors import HistoryError

_URL = re.compile(r"walkeeper://(?P<hosts>[^/]+)(?:/(?P<cluster>[A-Za-z0-9][A-Za-z0-9_.-]*)?)?")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):\d{1,5}")
# A safekeeper that did not answer is left alone for so long, while others do.
LEFT_ALONE_S = 20.0
FRONTS_MAX = 4096
SEGMENTS_KEPT = 2

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Range:
    """The range of the log that a file's name stands for."""

    timeline: int
    begin: int
    end: int


class LiveFiles:
    """A tree of one level: segments and the history of the newest timeline."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        self.addresses = found["hosts"].split(",") if found else []
        if not found or not all(_ADDRESS.fullmatch(each) for each in self.addresses):
            raise HistoryError(f"{url}: not walkeeper://HOST:PORT,HOST:PORT,…/CLUSTER")
        self._url, self._cluster = url.rstrip("/"), found["cluster"] or ""
        self.system_id: int | None = None  # the primary's, once files were listed
        self._own = threading.local()
        self._states: dict[str, ServedWal] = {}
        self._silent_until_s: dict[str, float] = {}
        self._histories: dict[int, tuple[Stretch, ...]] = {1: (Stretch(1, 1 << 64),)}
        self._fronts: dict[_Range, Bytes] = {}
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], Bytes] = {}

    def __reduce__(self) -> tuple[type[LiveFiles], tuple[str]]:
        """Return the URL alone, so that another process makes connections of its own."""
        return type(self), (self._url,)

    def is_logical(self) -> bool:
        """Return whether the log has decoded changes instead of WAL (entry_files.py)."""
        return self._first_of("", lambda link: link.is_logical())

    # The tree

    def list_files(self) -> list[tuple[str, int]]:
        """Return the files of the WAL that is committed now."""
        states = self._ask_all()
        newest = max(states, key=lambda each: (each.timeline, each.commit_lsn))
        if strange := {each.system_id for each in states} - {newest.system_id}:
            raise HistoryError(
                f"{self._url}: safekeepers of several clusters: {newest.system_id}, "
                f"{', '.join(map(str, strange))}"
            )
        self.system_id = newest.system_id
        path, size = self._history(newest.timeline), newest.segment_bytes
        found = [(timeline_file_name(newest.timeline), 0)] if newest.timeline > 1 else []
        first = min(each.oldest_lsn for each in states) // size * size
        for begin in range(first, newest.commit_lsn, size):
            end = min(begin + size, newest.commit_lsn)
            if not any(each.oldest_lsn <= begin and each.commit_lsn >= end for each in states):
                continue
            timeline = next(each.timeline for each in path if end <= each.end_lsn)
            name = segment_name(timeline, Lsn(begin), size)
            found.append(
                (name if end == begin + size else f"{name}.{end:016X}.partial", end - begin)
            )
        return found

    def read(self, path: str) -> Bytes:
        if path.endswith(".history"):
            timeline = int(path[:8], 16)
            return np.frombuffer(self._first_of("", lambda link: link.history(timeline)), np.uint8)
        wanted = self._range(path)
        held = self._kept.get((wanted.timeline, wanted.begin), np.empty(0, np.uint8))
        size = wanted.end - wanted.begin
        if len(held) >= size:
            return held[:size]
        # The log has grown since, and its committed part stays as it is.
        data: Bytes = np.empty(size, np.uint8)
        data[: len(held)] = held
        self._fetch(path, wanted, len(held), data)
        self._keep(wanted, data)
        return data

    def _keep(self, of: _Range, data: Bytes) -> None:
        """Keep the last segments for callers that follow the log."""
        with self._lock:
            self._kept.pop((of.timeline, of.begin), None)
            self._kept[of.timeline, of.begin] = data
            while len(self._kept) > SEGMENTS_KEPT:
                self._kept.pop(next(iter(self._kept)))

    def read_front(self, path: str, size: int) -> bytes:
        """Return a file's front. A segment's first page is kept, since plans and spills reread
        it."""
        if path.endswith(".history"):
            return self.read(path)[:size].tobytes()
        if ".partial" in path:
            return self.read(path)[:size].tobytes()
        wanted = self._range(path)
        if len(kept := self._fronts.get(wanted, np.empty(0, np.uint8))) < size:
            kept = np.empty(min(max(size, WAL_PAGE_BYTES), wanted.end - wanted.begin), np.uint8)
            self._fetch(path, wanted, 0, kept)
            if len(self._fronts) >= FRONTS_MAX:
                self._fronts.clear()
            self._fronts[wanted] = kept
        return kept[:size].tobytes()

    def open_plain(self, path: str) -> int | None:
        return None

    def read_pieces(self, path: str, size: int, at: int) -> Pieces:
        raise HistoryError(f"{self.shown(path)}: an index is of files, and this log is live")

    def shown(self, path: str) -> str:
        return f"{self._url}/{path}" if path else self._url

    # Ranges

    def _range(self, path: str) -> _Range:
        file = archived_file(path, 0)
        assert file is not None and file.segment is not None, f"{path=}"
        size = self._segment_bytes()
        timeline, begin = parse_segment_name(file.segment, size)
        return _Range(timeline, int(begin), file.end_lsn or int(begin) + size)

    def _fetch(self, path: str, wanted: _Range, known: int, data: Bytes) -> None:
        """Fetch data[known:], by the timelines that the log was on."""
        end = wanted.begin + len(data)
        at = wanted.begin + known
        for stretch in self._history(wanted.timeline):
            until = min(end, stretch.end_lsn)
            if at >= until:
                continue
            into = data[at - wanted.begin : until - wanted.begin]
            self._fetch_piece(path, at, until, stretch.timeline, into)
            at = until

    def _fetch_piece(self, path: str, begin: int, end: int, timeline: int, into: Bytes) -> None:
        def fetch(link: SafekeeperLink) -> None:
            state = self._states.get(link.address)
            if state is None or state.commit_lsn < end:
                state = self._states[link.address] = link.state()
            if not state.oldest_lsn <= begin:
                oldest = Lsn(state.oldest_lsn)
                raise Unavailable(f"{link.address}: WAL before {oldest} is not kept any more")
            if state.commit_lsn < end:
                raise Unavailable(f"{link.address}: has the log up to {Lsn(state.commit_lsn)} only")
            link.fetch(begin, end, timeline, into)

        # Different safekeepers serve neighbouring segments, to share the work.
        self._first_of(path, fetch, start=begin // self._segment_bytes())

    # Safekeepers

    def _ask_all(self) -> list[ServedWal]:
        """Return the states of the safekeepers that answer, asking lately silent ones last."""
        states: list[ServedWal] = []
        reasons = []
        for address in self._in_turn(0):
            if states and self._silent_until_s.get(address, 0) > time.monotonic():
                continue
            try:
                states.append(self._state_of(address))
            except Unavailable as error:
                reasons.append(str(error))
        if not states:
            raise HistoryError(f"{self._url}: no safekeeper answers: {'; '.join(reasons)}")
        return states

    def _state_of(self, address: str) -> ServedWal:
        state = self._asked(address, lambda link: link.state())
        self._states[address] = state
        return state

    def _segment_bytes(self) -> int:
        if not self._states:
            self._first_of("", lambda link: self._state_of(link.address))
        return next(iter(self._states.values())).segment_bytes

    def _history(self, timeline: int) -> tuple[Stretch, ...]:
        if timeline not in self._histories:
            content = self._first_of("", lambda link: link.history(timeline))
            shown = self.shown(timeline_file_name(timeline))
            self._histories[timeline] = parse_history(content, timeline, shown)
        return self._histories[timeline]

    def _first_of(
        self, path: str, ask: Callable[[SafekeeperLink], Answer], *, start: int = 0
    ) -> Answer:
        """Return the answer of the first safekeeper that gives one."""
        reasons = []
        for address in self._in_turn(start):
            try:
                return self._asked(address, ask)
            except Unavailable as error:
                reasons.append(str(error))
        raise HistoryError("; ".join(reasons), self.shown(path))

    def _in_turn(self, start: int) -> Iterator[str]:
        turned = [*self.addresses[start % len(self.addresses) :], *self.addresses]
        now_s = time.monotonic()
        in_order = list(dict.fromkeys(turned))
        yield from sorted(in_order, key=lambda each: self._silent_until_s.get(each, 0) > now_s)

    def _open(self, address: str) -> SafekeeperLink:
        return SafekeeperLink.open(address, self._cluster)

    def _asked(self, address: str, ask: Callable[[SafekeeperLink], Answer]) -> Answer:
        """Ask by this thread's connection. Reopen a lost idle connection once."""
        links: dict[str, SafekeeperLink] = vars(self._own).setdefault("links", {})
        try:
            if address in links and links[address].is_open:
                try:
                    return ask(links[address])
                except Unavailable:
                    if links[address].is_open:
                        raise
            links[address] = self._open(address)
            return ask(links[address])
        except Unavailable:
            if not (address in links and links[address].is_open):
                links.pop(address, None)
                self._silent_until_s[address] = time.monotonic() + LEFT_ALONE_S
            raise
