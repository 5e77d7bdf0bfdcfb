"""An archive as the commands of `walkeeper history` read it: opened, planned, problems shown.

Modules that need Arrow are imported where they are used: `stats` starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from walkeeper_cli.history.terminal import tell
from walkeeper_cli.history.wal_options import NameSource, Source
from walkeeper_common.lsn import Lsn
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, Problem, make_plan
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.threaded_reading import (
    Part,
    ReadEach,
    SweepOptions,
    in_one_chain,
    raise_fatal,
    read_each,
)
from walkeeper_wal.sources.wal_files import WalFiles

if TYPE_CHECKING:
    from walkeeper_history.find import SegmentDeeds
    from walkeeper_history.lsn_of_time import CommitTimes
    from walkeeper_history.rows.relation_names import RelationNames
    from walkeeper_history.segment_index import ProvenIndex, Updated
    from walkeeper_wal.sources.reading import Reading

Made = TypeVar("Made")


class Archive:
    """The archive of one command, and the problems that its reading met."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.files: WalFiles = open_files(source.path)
        self.options = SweepOptions(
            engine_name=source.engine, check_crc=source.verify == "crc", threads=source.jobs
        )
        self.problems: list[Problem] = []
        self.index = self._opened_index()
        start: int | None = source.start_lsn
        end: int | None = source.end_lsn
        if source.start_time or source.end_time:
            whole = make_plan(self.files, timeline=source.timeline)
            times = self.commit_times(whole)
            start, end = times.range(source.start_time, source.end_time, (start, end))
        self.plan: Plan = make_plan(
            self.files, timeline=source.timeline, start_lsn=start, end_lsn=end
        )

    def _opened_index(self) -> ProvenIndex | None:
        """Return the index of --index, which is written where there is none that fits."""
        path = self.source.index
        if path is None:
            return None
        from walkeeper_history.segment_index import Misfit, ProvenIndex, update_index

        plan = make_plan(self.files, timeline=self.source.timeline)
        if Path(path).exists():
            try:
                return ProvenIndex.open(path, self.files, plan)
            except Misfit as error:
                tell(f"walkeeper: {error}; this command writes it anew")
        # A damaged segment has no row, and the command meets it where it reads.
        update_index(self.files, plan, Path(path), on_problem=lambda _: None, options=self.options)
        return ProvenIndex.open(path, self.files, plan)

    def commit_times(self, plan: Plan) -> CommitTimes:
        """Return the commits' times of a plan; the index passes over segments before a time."""
        from walkeeper_history.lsn_of_time import CommitTimes

        index = self.index
        if index is None:
            return CommitTimes(self.files, plan)
        return CommitTimes(self.files, plan, lambda time: index.ending_before(plan, time))

    def deeds(self, xid: int | None) -> Iterator[SegmentDeeds]:
        """Return what `find` needs of the segments, with an index of those it has to read."""
        from walkeeper_history.find import deeds_of_segment
        from walkeeper_history.indexed_find import read_with

        if self.index is None:
            return (deeds for deeds, _ in self.sweep(deeds_of_segment))

        def read_but(skipped: frozenset[int]) -> Iterable[Part[SegmentDeeds]]:
            how = replace(self.options, skipped=skipped)
            parts: Iterable[Part[SegmentDeeds]] = self.read_each(
                self.files, self.plan, deeds_of_segment, how
            )
            return parts

        every = read_with(self.index, self.plan, read_but, xid)
        return (deeds for deeds, _ in in_one_chain(every, self.files, self.on_problem))

    def names(self, named: NameSource) -> RelationNames:
        """Return the relations' names. Raise HistoryError if they are those of another cluster."""
        from walkeeper_cli.history.catalog import relation_names

        names = relation_names(named, self.plan.system_id)
        if named.base is not None:
            from walkeeper_cli.history.replayed_names import replayed_names

            names.take(replayed_names(self.files, self.plan, named.base, self.on_problem))
        return names

    @property
    def exit_code(self) -> int:
        fatal = any(problem.fatal for problem in self.problems)
        return 1 if fatal and self.source.on_error == "report" else 0

    def on_problem(self, problem: Problem) -> None:
        """Handle a problem as --on-error says; show on stderr the place where reading goes on."""
        if self.source.on_error == "fail":
            raise_fatal(problem)
        if problem not in self.problems:
            self.problems.append(problem)
            if problem.fatal:
                tell(f"walkeeper: warning: {shown(problem)}")

    @property
    def read_each(self) -> ReadEach:
        """Return the segments read by threads of this process, or by Spark's executors."""
        if not self.source.spark:
            return read_each
        from pyspark_pgwal.executor_work import read_each_on

        return read_each_on(self.source.path)

    def sweep(
        self, make: Callable[[Reading], Made], options: SweepOptions | None = None
    ) -> Iterator[tuple[Made, Summary]]:
        return self.checked(self.read_each(self.files, self.plan, make, options or self.options))

    def checked(self, parts: Iterable[Part[Made]]) -> Iterator[tuple[Made, Summary]]:
        """Check that the parts are one chain, and handle their problems."""
        return in_one_chain(parts, self.files, self.on_problem)


def written_catalog(dsn: str, output: str) -> RelationNames:
    """Write a file of names for later, and return what it has now."""
    from walkeeper_cli.history.catalog import write_catalog

    return write_catalog(dsn, output)


def updated_index(archive: Archive, output: str) -> Updated:
    """Update an index with what is new in the archive."""
    from walkeeper_history.segment_index import update_index

    return update_index(
        archive.files, archive.plan, Path(output),
        on_problem=archive.on_problem, options=archive.options,
    )  # fmt: skip


def shown(problem: Problem) -> str:
    """Format a problem as one line: file, what is wrong, and where reading goes on."""
    went_on = f" (read on at {Lsn(problem.end_lsn)})" if problem.end_lsn is not None else ""
    return f"{problem.file}: {problem.reason}{went_on}"


@contextmanager
def opened(source: Source) -> Iterator[Archive]:
    """Open an archive for the length of one command."""
    yield Archive(source)
