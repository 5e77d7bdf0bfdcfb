"""A newcomer's way into a log, from its preparation until it is filled. Pure.

    log_of     the state of its log; raises Refused for another log
    prepare    it makes its incarnation durable, under which it is to be a member
    is_far     whether it lacks so much WAL that its log begins late (M5)
    begin_log  its log begins at the oldest WAL that the members surely keep, and a leader fills it
               from a donor, as it does for any laggard; or it begins late, where a term starts
    learning   whether it lacks less than a window, so that it may enter a set (M2)
    filling    whether a leader of this configuration has committed, and how much WAL it lacks

    is_held    whether an ack quorum of the target holds all WAL before the joint term (M5)

Spec: docs/protocol.md M2 to M5.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from walkeeper_common.errors import Refused
from walkeeper_common.history import History, term_start
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, LogKind, member_id, member_name
from walkeeper_common.wire.member_change import JoinLog, MembersState
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import LogState, PrepareLog
from walkeeper_proposer.consensus.members.deciding import Answers, Batch, way_back
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX

NO_LOG = bytes(16)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Safekeeper `number` at `address`, which is place `at` of the command, is to be a member.

    `zone` is its label. Without one, it takes the label of the member with its id, if there is one.
    """

    number: int
    address: str
    at: int
    zone: str = ""

    @property
    def absence(self) -> str:
        return f"safekeeper {self.number} at {self.address} does not answer"


def log_of(
    cluster: str, current: Configuration, newcomer: Newcomer, answers: Answers
) -> LogState | None:
    """Return the state of the newcomer's log, or None if the newcomer does not answer.

    Raise Refused if it rejects the request, has another id, or holds another log.
    """
    answer = answers.get(newcomer.at)
    if isinstance(answer, Reject):
        raise Refused(f"safekeeper at {newcomer.address}: {answer.text}")
    if not isinstance(answer, LogState):
        return None
    if answer.acceptor_id != newcomer.number:
        raise Refused(
            f"{newcomer.address} is safekeeper {answer.acceptor_id}, not {newcomer.number}: name "
            f"{answer.acceptor_id}@{newcomer.address}, or another address"
        )
    name = name_of(answer)
    is_ours = answer.log_uuid in (NO_LOG, current.log_uuid)
    if not is_ours or (answer.configuration is not None and name not in current.everyone):
        raise Refused(
            f"safekeeper {newcomer.number} at {newcomer.address} holds a log of cluster "
            f"{cluster!r} as {name}, which is no member. Stop it, remove that log's directory "
            "and start it again; then repeat this command"
        )
    return answer


def name_of(log: LogState) -> str:
    """Return the name under which the safekeeper is, or is to be, a member."""
    return member_name(log.acceptor_id, log.incarnation)


def prepare(
    cluster: str, current: Configuration, newcomer: Newcomer
) -> Generator[Batch, Answers, str | None]:
    """Return the name under which it is to be a member, or None if it does not answer.

    Raise Refused if it rejects the request.
    """
    answers = yield Batch({newcomer.at: PrepareLog(cluster, current.log_uuid)})
    answer = answers.get(newcomer.at)
    if isinstance(answer, Reject):
        raise Refused(f"safekeeper at {newcomer.address}: {answer.text}")
    if not isinstance(answer, LogState):
        return None
    return member_name(answer.acceptor_id, answer.incarnation)


def is_far(current: Configuration, at_work: Sequence[MembersState], fed_bytes_max: int) -> bool:
    """Return True if a leader would have to feed it more than `fed_bytes_max` before it may join.

    Return False for a logical log: its terms do not start at a record's end.
    """
    if current.kind is not LogKind.PHYSICAL or not at_work:
        return False
    committed = max(state.commit_lsn for state in at_work)
    return committed - min(committed, _kept_from(at_work)) > fed_bytes_max


def _kept_from(at_work: Sequence[MembersState]) -> Lsn:
    """Return restart_lsn as the members know it: they hold all WAL from there on (R14)."""
    return max(min(state.restart_lsn, state.commit_lsn) for state in at_work)


def begin_log(
    cluster: str,
    current: Configuration,
    newcomer: Newcomer,
    at_work: Sequence[MembersState],
    donors: tuple[str, ...] = (),
) -> Generator[Batch, Answers, None]:
    """Begin the newcomer's log at the oldest WAL that is surely kept for it, or late (M5).

    While it learns, restart_lsn stays where it is, within a bound (leadership.py). `donors` are
    addresses of members, from which a log that begins late is filled."""
    serving = [state for state in at_work if state.member in current.members]
    if not current.present.elects([state.member for state in serving]):
        text = "too few of the old members know of the newcomer yet"
        yield Batch(text=text, current=current)
        return
    if current.begins_late:
        late = _late_base(current, serving)
        if late is None:
            yield Batch(text=_no_leader(current), current=current)
            return
        join = JoinLog(cluster, current, *late, _kept_from(serving), donors)
        _check_joined(newcomer, (yield Batch({newcomer.at: join})))
        return
    donor = max(serving, key=lambda state: min(state.restart_lsn, state.commit_lsn))
    reached = min(donor.restart_lsn, donor.commit_lsn)
    oldest_lsn = max(state.oldest_lsn for state in serving)
    base_lsn = _oldest_kept(current, reached, donor.whole_lsn, oldest_lsn)
    history = _below(donor.history, base_lsn)
    join = JoinLog(cluster, current, base_lsn, history)
    _check_joined(newcomer, (yield Batch({newcomer.at: join})))


def _check_joined(newcomer: Newcomer, answers: Answers) -> None:
    answer = answers.get(newcomer.at)
    if isinstance(answer, Reject):
        raise Refused(f"safekeeper at {newcomer.address}: {answer.text}")


def _late_base(
    current: Configuration, serving: Sequence[MembersState]
) -> tuple[Lsn, History] | None:
    """Return where a log that begins late begins, and the history of the WAL below, or None.

    A leader of this generation has committed its term's start, which is a record's end. Every later
    term starts there or after it, so none starts below the log (M3). The log also has the segment
    before that of the record that ends there, because a primary is compared with it.
    """
    led = [s for s in serving if s.has_committed and s.commit_lsn >= _last_start(s)]
    if not led:
        return None
    last = max(led, key=_last_start)
    record = Lsn(max(int(_last_start(last)) - 1, current.creation_lsn))
    before_lsn = Lsn(record.round_down(current.segment_bytes) - current.segment_bytes)
    base_lsn = max(before_lsn, current.creation_lsn)
    return base_lsn, _below(last.history, base_lsn)


def _last_start(state: MembersState) -> Lsn:
    """Return where the last term of a member's log starts."""
    return term_start(state.history, state.history[-1].ballot)


def is_held(current: Configuration, at_work: Sequence[MembersState]) -> bool:
    """Return True if an ack quorum of the target holds all WAL up to the joint term's start (M5).

    A member that lacks a range does not count. A member that follows a leader of this generation,
    and has its term's start, holds all WAL from its own log's beginning on. No later leader
    truncates that WAL. WAL below restart_lsn may be gone, because all old members had it.
    """
    led = [s for s in at_work if s.has_committed]
    if not led:
        return False
    start_lsn, kept_lsn = max(map(_last_start, led)), _kept_from(at_work)
    holders = [s.member for s in led if s.oldest_lsn <= kept_lsn and s.flush_lsn >= start_lsn]
    return current.wanted.commits(holders)


def _oldest_kept(current: Configuration, restart_lsn: Lsn, whole_lsn: Lsn, oldest_lsn: Lsn) -> Lsn:
    """Return the start of the segment before that of the last whole record below restart_lsn.

    Retention keeps both segments (docs/steps.md, "Truncation by retention"). The later one alone
    may hold only the end of a record, which cannot show that a primary wrote this log. An
    unfinished record may lie around restart_lsn and be many segments long. Every later term starts
    at its start, so a log that begins inside it can follow no leader (M3,
    scenarios/newcomer_begins_before_an_unfinished_record.txt). If its start is not known, the
    newcomer gets all WAL. The base is not below oldest_lsn, from which all old members have WAL. It
    is not above the segment of whole_lsn: the members keep all WAL from there on. An archive may
    have older WAL that the disks lack.
    """
    segment_bytes, creation_lsn = current.segment_bytes, current.creation_lsn
    known_lsn = whole_lsn or restart_lsn
    latest_lsn = max(known_lsn.round_down(segment_bytes), creation_lsn)
    record = Lsn(max(int(whole_lsn) - 1, creation_lsn)).round_down(segment_bytes)
    return min(latest_lsn, max(Lsn(record - segment_bytes), creation_lsn, oldest_lsn))


def _below(history: History, lsn: Lsn) -> History:
    """Return the history of the WAL below `lsn`, since a later entry may not be committed."""
    return (*history[:1], *(entry for entry in history[1:] if entry.start_lsn < lsn))


def learning(current: Configuration, at_work: Sequence[MembersState]) -> tuple[bool, int | None]:
    """Return (the learners may enter a set, bytes that the one with the least WAL lacks).

    Each of them follows a leader of this very configuration, and lacks less than a window. So
    they hold up no commit for longer than the proposer needs to send what it has in memory (M2).
    """
    newcomers, to_go = _lacking(current, at_work)
    is_near = to_go is not None and to_go < WINDOW_BYTES_MAX
    return is_near and all(state.has_committed for state in newcomers), to_go


def _lacking(
    current: Configuration, at_work: Sequence[MembersState]
) -> tuple[Sequence[MembersState], int | None]:
    """Return the newcomers' states, and the bytes that the one with the least WAL lacks.

    The bytes are None while a newcomer does not answer, and without newcomers.
    """
    newcomers = [state for state in at_work if state.member in current.newcomers]
    if not newcomers or len(newcomers) < len(current.newcomers):
        return newcomers, None
    committed = max(state.commit_lsn for state in at_work)
    return newcomers, max(0, committed - min(state.flush_lsn for state in newcomers))


def filling(
    current: Configuration, at_work: Sequence[MembersState], known_lsn: Lsn
) -> tuple[bool, int | None]:
    """Return (the target may become final, bytes that the newcomer with the least WAL lacks).

    A leader of this very configuration has committed its term's start with both sets, so an ack
    quorum of the target has it (M4). Each newcomer has all that was committed a round ago.
    """
    if current.begins_late and not is_held(current, at_work):
        return False, _to_copy(current, at_work)
    if not current.newcomers:
        return any(state.has_committed for state in at_work), None
    newcomers, to_go = _lacking(current, at_work)
    if to_go is None:
        return False, None
    filled = all(s.has_committed and s.commit_lsn >= known_lsn for s in newcomers)
    return filled and known_lsn > ZERO_LSN, to_go


def _to_copy(current: Configuration, at_work: Sequence[MembersState]) -> int | None:
    """Return how much older WAL is still to be copied to the newcomer that lacks most of it."""
    oldest = [state.oldest_lsn for state in at_work if state.member in current.newcomers]
    return max(0, max(oldest) - _kept_from(at_work)) if oldest else None


def what_it_waits_for(
    current: Configuration, at_work: Sequence[MembersState], to_go: int | None
) -> str:
    """Return what the next step of the change waits for, as a text for people."""
    lost = _beyond_reach(current, at_work)
    if lost is not None:
        return lost
    if any(s.has_committed and s.member in current.everyone for s in at_work):
        if to_go and len(current.sets) > 1 and to_go == _to_copy(current, at_work):
            return "too few of the new members hold older WAL, which is copied to the newcomers"
        who = "the newcomer" if len(current.newcomers) == 1 else "a newcomer"
        return f"{who} is being filled" if to_go else f"{who} has not attached yet"
    return _no_leader(current)


def _no_leader(current: Configuration) -> str:
    return (
        f"no proposer has committed with generation {current.generation} yet: one that runs does "
        "so within seconds; if none runs, start one, or run `walkeeper settle` without a primary"
    )


def _beyond_reach(current: Configuration, at_work: Sequence[MembersState]) -> str | None:
    """Return the text for a learner that lacks WAL which no member keeps any more, or None."""
    oldest = [state.oldest_lsn for state in at_work if state.member in current.members]
    lost = [
        state
        for state in at_work
        if state.member in current.learners and oldest and state.flush_lsn < min(oldest)
    ]
    if not lost:
        return None
    number = member_id(lost[0].member)
    return (
        f"safekeeper {number} lacks WAL from {lost[0].flush_lsn} on, and no member keeps it: take "
        f"the change back with {way_back(current)}, remove that log on safekeeper {number}, and "
        "begin again"
    )
