"""`walkeeper restore` from its words to its outcome: `found`, `absent`, `help shown`, or a failure.

A segment that was fetched ahead is put in place before the command line is imported. This saves
time for each segment, because PostgreSQL starts this process for each, and waits for it.
"""

from __future__ import annotations

from walkeeper_restore import spool
from walkeeper_restore.guard import SEGMENT_DIGITS, is_wal_name, say
from walkeeper_restore.standby_check import proof

# The imports make objects that stay. To look for garbage among them takes 5 ms.
GARBAGE_MAX = 100_000

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from click import Group


def run(words: list[str], program: Callable[[], Group]) -> str:
    """Block until there is an outcome, and return it as a word.

    An exception means that the outcome is not known.

    `program` imports the command line. It is called only if the file was not fetched ahead.
    """
    if not __debug__:
        raise RuntimeError("the assertions are part of the protocol; do not use python -O")
    if _was_fetched_ahead(words):
        return "found"
    return _from_the_start(words, program)


def _was_fetched_ahead(words: list[str]) -> bool:
    if len(words) < 3 or not is_wal_name(words[-2]) or len(words[-2]) != SEGMENT_DIGITS:
        return False
    key = spool.key_of(words[:-2])
    if proof.is_owed(key):  # an earlier start of this server fetched the segments there
        return False
    return spool.take(words[-2], words[-1], key, spool.system_id())


def _from_the_start(words: list[str], program: Callable[[], Group]) -> str:
    import gc

    gc.set_threshold(GARBAGE_MAX)
    import click

    from walkeeper_common.errors import WalkeeperError
    from walkeeper_common.operator_text.printable import in_one_line

    try:
        outcome = program().main(words, prog_name="walkeeper", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return "usage"
    except WalkeeperError as error:
        say(in_one_line(error))
        return "failed"
    if outcome in ("found", "absent"):
        return str(outcome)
    return "help shown" if outcome in (None, 0) else "failed"
