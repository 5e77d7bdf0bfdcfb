"""The options of all commands of `walkeeper history`: the WAL to read, and how to read it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from walkeeper_cli.options import ParamType, archive_keys_option, option, tls_option
from walkeeper_common.lsn import Lsn
from walkeeper_history.time_text import parse_time

Function = TypeVar("Function", bound=Callable[..., Any])
ON_ERROR = ("fail", "skip", "report")
# numpy's threads for linear algebra are of no use here, and take memory. If a limit keeps them from
# starting, they raise SIGINT, as if an operator had interrupted the command.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@dataclass(frozen=True, slots=True)
class Source:
    """The part of an archive to read, and the reaction to damage."""

    path: str
    start_lsn: Lsn | None
    end_lsn: Lsn | None
    start_time: datetime | None
    end_time: datetime | None
    timeline: int | None
    on_error: str
    verify: str
    engine: str
    spark: bool
    jobs: int | None
    index: str | None = None


@dataclass(frozen=True, slots=True)
class NameSource:
    """The sources of relations' names; each of them is optional."""

    catalogs: tuple[str, ...] = ()
    dsn: str | None = None
    base: str | None = None
    insists: bool = True
    """True if the command fails without an answer of the server of `dsn`."""


def is_asked_for(name: str) -> bool:
    """Return True if an option is on the command line.

    In the environment or the TOML file, --dsn is meant for the commands that need the primary.
    History also reads WAL of a primary that is gone, and of other servers.
    """
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


class LsnText(ParamType):
    """`0/16B3748`."""

    name = "lsn"

    def convert(self, value: Any, param: Any, ctx: Any) -> Lsn:
        try:
            return value if isinstance(value, Lsn) else Lsn.parse(str(value).strip())
        except ValueError:
            self.fail(f"{value!r} is not an LSN such as 0/16B3748", param, ctx)


class Time(ParamType):
    """`2024-05-01 12:30:00+02`; UTC unless it has a time zone."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_time(str(value).strip())
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2024-05-01 12:30:00+02", param, ctx)


class Timeline(ParamType):
    """A number, or eight hexadecimal digits as in names of files."""

    name = "timeline"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        text = str(value).strip()
        try:
            number = int(text, 16 if len(text) == 8 else 10)
        except ValueError:
            number = 0
        if not 0 < number < 1 << 32:
            self.fail(f"{value!r} is not a timeline such as 2 or 00000002", param, ctx)
        return number


_OPTIONS = (
    option(
        "--path", required=True, metavar="URL",
        help="A directory, a segment, s3://…, gs://…, az://…, or a live log: "
        "walkeeper://HOST:PORT,HOST:PORT/CLUSTER.",
    ),
    tls_option,
    archive_keys_option,
    option("--start-lsn", type=LsnText(), metavar="LSN", help="Read records from here on."),
    option("--end-lsn", type=LsnText(), metavar="LSN", help="Read records up to here."),
    option(
        "--start-time", type=Time(), metavar="TIME",
        help="Begin with the first commit at this time or later.",
    ),
    option("--end-time", type=Time(), metavar="TIME", help="End with the last commit before this."),
    option("--timeline", type=Timeline(), metavar="TLI", help="The timeline.  [default: newest]"),
    option(
        "--on-error", type=click.Choice(ON_ERROR), default="fail", show_default=True,
        help="At damaged or missing WAL: stop, go on with a warning, or go on and exit with 1.",
    ),
    option(
        "--verify", type=click.Choice(["crc", "none"]), default="crc", show_default=True,
        help="Check every record's CRC, or none.",
    ),
    option(
        "--engine", type=click.Choice(["auto", "compiled", "numpy"]), default="auto",
        hidden=True,
        help="The engine that reads records.",
    ),
    option(
        "--spark", is_flag=True,
        help="Read with Spark's executors, those of spark-submit or local ones.",
    ),
    option(
        "--jobs", "-j", type=click.IntRange(1, 256), metavar="N",
        help="The number of threads.  [default: one per CPU]",
    ),
    option(
        "--index", metavar="FILE", type=click.Path(dir_okay=False),
        help="A file of `history index`, with which the command skips segments that it does not "
        "need. It is written where there is none.",
    ),
)  # fmt: skip


def source_options(function: Function) -> Callable[..., Any]:
    """Add all of these options to a command, which gets them as one `source`."""
    return source_options_but()(function)


def source_options_but(**refused: str) -> Callable[[Function], Callable[..., Any]]:
    """Add all of these options but the refused ones, which have no meaning for a command.

    The help omits a refused option, and its use raises UsageError with the text given for it.
    """

    def add_to(function: Function) -> Callable[..., Any]:
        fields = tuple(Source.__dataclass_fields__)

        @functools.wraps(function)
        def gathered(**values: Any) -> Any:
            source = Source(**{name: values.pop(name) for name in fields})
            for name, instead in refused.items():
                if getattr(source, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise click.UsageError(f"{flag} has no meaning here: {instead}")
            return function(source=source, **values)

        wrapped: Callable[..., Any] = gathered
        for add in reversed(_OPTIONS):
            wrapped = add(wrapped)
        for parameter in wrapped.__click_params__:  # type: ignore[attr-defined]
            parameter.hidden |= parameter.name in refused
        return wrapped

    return add_to


def names_options(function: Function) -> Callable[..., Any]:
    """Add --catalog, --dsn and --base to a command, which gets them as one `named`."""

    @functools.wraps(function)
    def gathered(
        catalogs: tuple[str, ...], dsn: str | None, base: str | None, **values: Any
    ) -> Any:
        named = NameSource(catalogs, dsn or None, base, insists=is_asked_for("dsn"))
        return function(named=named, **values)

    catalog = option(
        "--catalog", "catalogs", multiple=True, metavar="FILE",
        type=click.Path(exists=True, dir_okay=False),
        help="A file of `history catalog` with names of relations. Repeat it for several.",
    )  # fmt: skip
    dsn = option(
        "--dsn", metavar="DSN",
        help="The server whose present names of relations to use. WALKEEPER_DSN is optional: it "
        "counts only if that server answers and wrote the WAL.",
    )  # fmt: skip
    base = option(
        "--base", metavar="DIR", type=click.Path(exists=True, file_okay=False),
        help="A base backup (plain format). Names come from it and from the WAL since then, also "
        "those of dropped relations.",
    )  # fmt: skip
    return catalog(dsn(base(gathered)))
