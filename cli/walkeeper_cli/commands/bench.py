"""`walkeeper bench`: what commits cost with walkeeper, beside three pg_receivewal; the archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from walkeeper_cli.options import config_option, option

Command = Callable[..., int]

SHARED = (
    option(
        "--rounds", type=click.IntRange(1, 100), default=3, show_default=True,
        help="How often each side is measured; they take turns.",
    ),
    option(
        "--scale", type=click.IntRange(1, 10_000), default=20, show_default=True,
        help="Of pgbench's tables: 100 000 accounts, about 15 MB, each.",
    ),
    option(
        "--dir", "directory", type=click.Path(file_okay=False, exists=True),
        envvar="WALKEEPER_DIR",
        help="On the disk that is measured; not a tmpfs.  [default: the temporary directory]",
    ),
    option(
        "--bindir", type=click.Path(exists=True, file_okay=False),
        help="PostgreSQL's programs.  [default: of PATH, of /usr/lib/postgresql]",
    ),
    option("--json", type=click.Path(dir_okay=False), help="The figures of every round."),
    option("--plot", type=click.Path(dir_okay=False), help="A plot: FILE.svg, .png or .pdf."),
    config_option,
)  # fmt: skip

# Not from WALKEEPER_ARCHIVE: what a benchmark writes belongs to no archive that is in use.
archive_option = click.option(
    "--archive", metavar="URL", help="Where to.  [default: a directory on the same disk]"
)


def shared(function: Command) -> Command:
    """The options of all benchmarks."""
    for decorate in reversed(SHARED):
        function = decorate(function)
    return function


@click.group("bench", short_help="Measure commits beside three pg_receivewal.")
def command() -> None:
    """Measure what commits cost with walkeeper, with three pg_receivewal, and with neither.

    A PostgreSQL is made, and the sides take turns on it in each round, on the same disk: their
    ratios say something, the figures themselves are this machine's. fsync and full_page_writes are
    on. Let nothing else run meanwhile.
    """


@command.command("commit")
@option(
    "--seconds", type=click.IntRange(1, 3600), default=20, show_default=True,
    help="For each side and number of clients in a round.",
)  # fmt: skip
@shared
def commit(seconds: int, **flags: Any) -> int:
    """Transactions a second and latency with 1, 8 and 32 clients (pgbench -N)."""
    from walkeeper_cli.bench.commit import Commit
    from walkeeper_cli.bench.show import BenchSettings, run

    return run(BenchSettings(**flags), lambda server: Commit(server, seconds))


@command.command("bulk")
@option(
    "--megabytes", type=click.IntRange(1, 100_000), default=500, show_default=True,
    help="What each transaction writes.",
)  # fmt: skip
@shared
def bulk(megabytes: int, **flags: Any) -> int:
    """WAL MB/s of COPY and of pg_logical_emit_message."""
    from walkeeper_cli.bench.bulk import Bulk
    from walkeeper_cli.bench.show import BenchSettings, run

    return run(BenchSettings(**flags), lambda server: Bulk(server, megabytes))


@command.command("failover")
@shared
def failover(**flags: Any) -> int:
    """The longest gap between commits when one of three receivers is killed."""
    from walkeeper_cli.bench.failover import Failover
    from walkeeper_cli.bench.show import BenchSettings, run

    return run(BenchSettings(**flags), Failover)


@command.command("archive")
@option(
    "--seconds", type=click.IntRange(1, 3600), default=20, show_default=True,
    help="For each side and number of clients in a round.",
)  # fmt: skip
@archive_option
@shared
def archive(seconds: int, archive: str | None, **flags: Any) -> int:
    """Transactions a second without an archive, with one, and with a store that fails.

    \b
    The same safekeepers are started again for each side. What they archive at URL stays there,
    as the log of a cluster bench_…:
      walkeeper bench archive
      walkeeper bench archive --archive s3://scratch/bench
    """
    from walkeeper_cli.bench.archiving import FAILING, WITH, WITHOUT, ArchiveCommits, sides
    from walkeeper_cli.bench.show import BenchSettings, run

    return run(
        BenchSettings(**flags),
        lambda server: ArchiveCommits(server, seconds),
        lambda server, directory: sides(server, directory, archive),
        ratio=(WITH, WITHOUT),
        also=(FAILING,),
    )


@command.command("archive-put")
@archive_option
@option(
    "--segments", type=click.IntRange(1, 10_000), default=24, show_default=True,
    help="Of 16 MB, archived by each side in a round.",
)  # fmt: skip
@shared
def archive_put(archive: str | None, segments: int, **flags: Any) -> int:
    """MB/s of archiving beside `cp` (file://) or a plain put of the same (s3://, gs://, az://).

    \b
    No server is needed. What was written is removed.
      walkeeper bench archive-put
      walkeeper bench archive-put --archive s3://scratch/bench
    """
    from walkeeper_cli.bench.show import BenchSettings, run_puts

    return run_puts(BenchSettings(**flags), archive, segments)
