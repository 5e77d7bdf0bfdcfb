"""`walkeeper bench`: the cost of commits with walkeeper, three pg_receivewal and an archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from walkeeper_cli.options import Duration, config_option, option
from walkeeper_common.errors import Refused

if TYPE_CHECKING:
    from walkeeper_lab.bench.bench_server import BenchServer
    from walkeeper_lab.bench.rounds import Bench

    MakeBench = Callable[[BenchServer], Bench]

Command = Callable[..., int]

SHARED = (
    option(
        "--rounds", type=click.IntRange(1, 100), default=3, show_default=True,
        help="How often to measure each side; the sides take turns.",
    ),
    option(
        "--scale", type=click.IntRange(1, 10_000), default=20, show_default=True,
        help="The scale of pgbench's tables, with 100 000 accounts (about 15 MB) each.",
    ),
    option(
        "--dir", "directory", type=click.Path(file_okay=False, exists=True),
        envvar="WALKEEPER_DIR",
        help="A directory on the disk to measure; not a tmpfs.  [default: the temporary directory]",
    ),
    option(
        "--bindir", type=click.Path(exists=True, file_okay=False),
        help="The folder of PostgreSQL's programs.  [default: of PATH, of /usr/lib/postgresql]",
    ),
    option("--json", type=click.Path(dir_okay=False), help="A file for each round's figures."),
    option("--plot", type=click.Path(dir_okay=False), help="A file for a plot (.svg, .png, .pdf)."),
    config_option,
)  # fmt: skip

tls_option = option(
    "--tls", is_flag=True,
    help="Measure what TLS costs walkeeper, and three pg_receivewal: each with it on all links and "
    "without.",
)  # fmt: skip

round_trip_option = option(
    "--round-trip", type=Duration(), default="0", metavar="DURATION",
    help="The time that every exchange with a receiver takes longer, as with receivers on other "
    "machines: 0.2ms, 1ms. Relays on this machine make it.  [default: 0]",
)  # fmt: skip

pin_option = option(
    "--pin", is_flag=True,
    help="Run the receivers on the last processor, and the server and its clients on the others. "
    "On other machines, receivers would not take the server's processors either.",
)  # fmt: skip

slow_path_option = option(
    "--slow-path", is_flag=True,
    help="Also measure walkeeper without its compiled fast path.",
)  # fmt: skip

# The option ignores WALKEEPER_ARCHIVE: files of a benchmark belong to no archive that is in use.
archive_option = click.option(
    "--archive", metavar="URL", help="The archive.  [default: a directory on the same disk]"
)


def _measured(flags: dict[str, Any], make: MakeBench, *, tls: bool, slow_path: bool) -> int:
    """Run a benchmark beside pg_receivewal, as it is or with one of the two comparisons.

    With `tls` each of the two runs with TLS and without.
    """
    from walkeeper_fastpath import switch
    from walkeeper_lab.bench import sides
    from walkeeper_lab.bench.bench_run import BenchSettings, run

    if tls and slow_path:
        raise click.UsageError("--tls and --slow-path are two comparisons: choose one of them")
    settings = BenchSettings(**flags)
    if slow_path:
        if not switch.is_on():
            raise Refused(f"--slow-path: without it, the fast path is {switch.state()}, too")
        slow = (sides.SLOW_PATH, sides.RECEIVER)
        return run(settings, make, sides.sides_of_paths, also=(slow,))
    if not tls:
        return run(settings, make)
    from walkeeper_cli.certs.local_files import local_tls

    theirs = (sides.RECEIVER_WITH_TLS, sides.RECEIVER)
    return run(
        settings,
        make,
        lambda server, folder, cables: sides.sides_of_tls(server, folder, cables, local_tls),
        ratio=(sides.WITH_TLS, sides.NAME),
        also=(theirs, (sides.WITH_TLS, sides.RECEIVER_WITH_TLS)),
    )


def shared(function: Command) -> Command:
    """Add the options of all benchmarks."""
    for decorate in reversed(SHARED):
        function = decorate(function)
    return function


@click.group("bench", short_help="Measure commits beside three pg_receivewal.")
def command() -> None:
    """Measure what commits cost with walkeeper, with three pg_receivewal, and with neither.

    The benchmark makes a PostgreSQL server, and in each round the sides take turns on it, on the
    same disk. The ratios are comparable; the figures are this machine's. fsync and
    full_page_writes are on. Run nothing else meanwhile.
    """


@command.command("commit")
@option(
    "--seconds", type=click.IntRange(1, 3600), default=20, show_default=True,
    help="The seconds for each side and number of clients in a round.",
)  # fmt: skip
@tls_option
@slow_path_option
@round_trip_option
@pin_option
@shared
def commit(seconds: int, tls: bool, slow_path: bool, **flags: Any) -> int:
    """Measure commits per second, latency and CPU with 1, 8 and 32 clients (pgbench -N).

    \b
    As with receivers on other machines, 1 ms away:
      walkeeper bench commit --round-trip 1ms --pin
    """
    from walkeeper_lab.bench.commit import Commit

    return _measured(flags, lambda server: Commit(server, seconds), tls=tls, slow_path=slow_path)


@command.command("bulk")
@option(
    "--megabytes", type=click.IntRange(1, 100_000), default=500, show_default=True,
    help="The bytes that each transaction writes.",
)  # fmt: skip
@tls_option
@slow_path_option
@shared
def bulk(megabytes: int, tls: bool, slow_path: bool, **flags: Any) -> int:
    """Measure the MB/s of WAL of COPY and of pg_logical_emit_message."""
    from walkeeper_lab.bench.bulk import Bulk

    return _measured(flags, lambda server: Bulk(server, megabytes), tls=tls, slow_path=slow_path)


@command.command("failover")
@round_trip_option
@pin_option
@shared
def failover(**flags: Any) -> int:
    """Measure the longest gap between commits when one of three receivers is killed."""
    from walkeeper_lab.bench.bench_run import BenchSettings, run
    from walkeeper_lab.bench.failover import Failover

    return run(BenchSettings(**flags), Failover)


@command.command("archive")
@option(
    "--seconds", type=click.IntRange(1, 3600), default=20, show_default=True,
    help="The seconds for each side and number of clients in a round.",
)  # fmt: skip
@archive_option
@shared
def archive(seconds: int, archive: str | None, **flags: Any) -> int:
    """Measure transactions per second without an archive, with one, and with a failing store.

    \b
    Each side starts the same safekeepers. Their files stay at URL, as the log of a cluster bench_…:
      walkeeper bench archive
      walkeeper bench archive --archive s3://scratch/bench
    """
    from walkeeper_lab.bench.archiving import FAILING, WITH, WITHOUT, ArchiveCommits, sides
    from walkeeper_lab.bench.bench_run import BenchSettings, run

    return run(
        BenchSettings(**flags),
        lambda server: ArchiveCommits(server, seconds),
        lambda server, directory, cables: sides(server, directory, archive),
        ratio=(WITH, WITHOUT),
        also=((FAILING, WITHOUT),),
    )


@command.command("archive-put")
@archive_option
@option(
    "--segments", type=click.IntRange(1, 10_000), default=24, show_default=True,
    help="The number of 16 MB segments that each side archives in a round.",
)  # fmt: skip
@shared
def archive_put(archive: str | None, segments: int, **flags: Any) -> int:
    """Measure the MB/s of archiving, and of `cp` (file://) or plain puts (s3://, gs://, az://).

    \b
    It needs no server, and removes its files.
      walkeeper bench archive-put
      walkeeper bench archive-put --archive s3://scratch/bench
    """
    from walkeeper_lab.bench.bench_run import BenchSettings, run_puts

    return run_puts(BenchSettings(**flags), archive, segments)
