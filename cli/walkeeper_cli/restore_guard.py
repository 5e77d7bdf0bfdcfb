"""Where every `walkeeper` starts, and the guard around `walkeeper restore`.

Contract: on the way in nothing is imported but `os` and `sys`, which Python itself has imported. A
restore ends with 0 only if the file was placed, with 1 only if its absence was proven, by a signal
if it was sent one, and with 126 for whatever else: a flag that does not exist, a module that does
not import, an exception, a closed stderr. PostgreSQL takes 1 to 125 for "there is no such WAL":
that **ends an archive recovery and opens the server**; 126 and more stop it (xlogarchive.c:
wait_result_is_any_signal).
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
    """What PostgreSQL puts for %f."""
    return (len(word) == SEGMENT_DIGITS and HEX.issuperset(word)) or word.endswith(".history")


def is_restore(words: Sequence[str]) -> bool:
    """Whether PostgreSQL may be waiting for the answer; a misspelt `restore` is one as well."""
    if len(words) >= 2 and is_wal_name(words[-2]):
        return True
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            return word == "restore"
        is_value = not is_value and word in TAKES_A_VALUE
    return False


def say(text: str) -> None:
    """To the server's log, if it can be heard."""
    try:
        sys.stderr.write(f"walkeeper restore: {text}\n")
        sys.stderr.flush()
    except Exception:
        return


def restore(words: list[str], broken: Callable[[BaseException], None] | None = None) -> int:
    """The exit code. `broken` is told of what cannot be imported; it may start us again."""
    try:
        # Ctrl-C as well ends us as a signal, not as an exception that becomes a number. One that
        # our parent ignores stays ignored. (`signal` itself imports for as long as the rest.)
        signals = __import__("_signal")
        if signals.getsignal(signals.SIGINT) != signals.SIG_IGN:
            signals.signal(signals.SIGINT, signals.SIG_DFL)
        from walkeeper_cli.restore.entry import run

        outcome = run(words)
    except ImportError as error:
        if broken is not None:
            broken(error)
        say(f"this installation is broken: {error}")
        return CANNOT_TELL
    except BaseException as error:
        say(f"{type(error).__name__}: {error}")
        return CANNOT_TELL
    # A word, so that no number that strayed here can become a verdict.
    if outcome == "help shown" and not any(map(is_wal_name, words)):
        return 0
    return {"found": FOUND, "absent": ABSENT}.get(outcome, CANNOT_TELL)


def _take_standard_streams() -> None:
    """What is opened next must not become 0, 1 or 2 where a parent has closed them: a log line
    would go into a segment, and the event loop ends the process when it is to close one."""
    try:
        while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(nowhere)
    except OSError:  # too few descriptors, or no /dev: whoever needs them will say so
        return


def main(broken: Callable[[BaseException], None] | None = None) -> None:
    """What the script `walkeeper` and `python -m walkeeper_cli` call."""
    _take_standard_streams()
    words = sys.argv[1:]
    if not is_restore(words):
        from walkeeper_cli.program import main as main_of_all

        main_of_all()
        return
    code = CANNOT_TELL
    try:
        code = restore(words, broken)
        sys.stdout.flush()
    except BaseException:  # a stdout that cannot be flushed: without os._exit that would be 120
        pass
    finally:
        os._exit(code)
