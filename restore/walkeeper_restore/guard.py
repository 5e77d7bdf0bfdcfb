"""The guard around `walkeeper restore`: no failure becomes an exit code that ends a recovery.

Contract: this module imports only `os` and `sys`, which Python itself has imported before. The
exit code of a restore has a strict meaning:

0          the file is in place
1          the absence of the file is proven
a signal   the process got this signal
126        any other end: an unknown flag, a module that fails to import, an exception, a closed
           stderr

PostgreSQL reads 1 to 125 as "there is no such WAL". This **ends an archive recovery and opens the
server**. A code of 126 or more stops the recovery (xlogarchive.c: wait_result_is_any_signal).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FOUND, ABSENT, CANNOT_TELL = 0, 1, 126
TAKES_A_VALUE = ("--config", "--log-level")
SEGMENT_DIGITS = 24
HEX = frozenset("0123456789ABCDEF")


def is_wal_name(word: str) -> bool:
    """Return True if PostgreSQL may replace %f by this word: a segment or a `.history` file."""
    return (len(word) == SEGMENT_DIGITS and HEX.issuperset(word)) or word.endswith(".history")


def is_restore(words: Sequence[str]) -> bool:
    """Return True if PostgreSQL may be waiting for the answer, even to a misspelt `restore`."""
    if len(words) >= 2 and is_wal_name(words[-2]):
        return True
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            return word == "restore"
        is_value = not is_value and word in TAKES_A_VALUE
    return False


def say(text: str) -> None:
    """Write a line to stderr, which is the server's log; ignore a failure."""
    try:
        sys.stderr.write(f"walkeeper restore: {text}\n")
        sys.stderr.flush()
    except Exception:
        return


def restore(
    words: list[str],
    run: Callable[[list[str]], str],
    broken: Callable[[BaseException], None] | None = None,
) -> int:
    """Return the exit code of `run`, which takes the words and returns the outcome as a word.

    `broken` gets the error of a module that cannot be imported, and may start this process again.
    """
    try:
        # Ctrl-C also ends this process by a signal, not by an exception that becomes a number. If
        # the parent ignores SIGINT, so does this process. (To import `signal` takes as long as
        # the rest.)
        signals = __import__("_signal")
        if signals.getsignal(signals.SIGINT) != signals.SIG_IGN:
            signals.signal(signals.SIGINT, signals.SIG_DFL)
        outcome = run(words)
    except ImportError as error:
        if broken is not None:
            broken(error)
        say(f"this installation is broken: {error}")
        return CANNOT_TELL
    except BaseException as error:
        say(f"{type(error).__name__}: {error}")
        return CANNOT_TELL
    # The outcome is a word, so that no stray number can become a verdict.
    if outcome == "help shown" and not any(map(is_wal_name, words)):
        return 0
    return {"found": FOUND, "absent": ABSENT}.get(outcome, CANNOT_TELL)


def _take_standard_streams() -> None:
    """Open /dev/null as each of the descriptors 0, 1 and 2 that a parent has closed.

    Otherwise the next file would get such a number. A log line would then go into a segment, and
    the event loop ends the process when it closes one of the three.
    """
    try:
        while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(nowhere)
    except OSError:  # too few descriptors, or no /dev: the code that needs them reports it
        return


def main(
    run_restore: Callable[[list[str]], str],
    run_any_other: Callable[[], None],
    broken: Callable[[BaseException], None] | None = None,
) -> None:
    """Run the command that the process was started with, and end a restore by its exit code."""
    _take_standard_streams()
    words = sys.argv[1:]
    if not is_restore(words):
        run_any_other()
        return
    code = CANNOT_TELL
    try:
        code = restore(words, run_restore, broken)
        sys.stdout.flush()
    except BaseException:  # stdout cannot be flushed: without os._exit the exit code would be 120
        pass
    finally:
        os._exit(code)
