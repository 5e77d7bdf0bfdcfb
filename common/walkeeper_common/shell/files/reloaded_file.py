"""A file with secrets that a daemon loads again when it has changed: one body for all of them.

    file = ReloadedFile(path, load, what=…, option=…); file.current()

`current` looks at the file and loads a newer one. A file that cannot be loaded leaves the former
one in force, with one warning for each such file. `on_change` names a function to call after each
load; without one, connections keep what they began with. `watch` makes a file one of those that the
daemon looks at each minute and on SIGHUP.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from walkeeper_common.errors import Refused

logger = logging.getLogger("walkeeper.files")

MODE_MAX: Final = 0o600
T = TypeVar("T")


class ReloadedFile(Generic[T]):
    """One file; raises Refused at once if it cannot be used.

    `what` names it in messages, as `TLS file`. `secret` is what others could read in it.
    """

    def __init__(
        self, path: str, load: Callable[[str], T], *, what: str, option: str, secret: str
    ) -> None:
        self.path, self.what = path, what
        self._load, self._option, self._secret = load, option, secret
        self._stamp = self._stamp_now()
        self._loaded = load(path)
        self._refused_stamp: tuple[int, ...] | None = None
        self._on_change: Callable[[], None] = lambda: None

    @property
    def loaded(self) -> T:
        """Return what was loaded last, without a look at the file."""
        return self._loaded

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this function from now on after each load, in the place of a former one."""
        self._on_change = call

    def current(self) -> T:
        """Return what the file has now, or had when it was last usable."""
        self.reload()
        return self._loaded

    def reload(self) -> None:
        """Load the file if it has changed; keep the former one, with a warning, if it is bad."""
        try:
            stamp = self._stamp_now()
            if stamp in (self._stamp, self._refused_stamp):
                return
        except Refused as error:
            stamp, why = (), error
        else:
            try:
                self._loaded = self._load(self.path)
            except Refused as error:
                why = error
            else:
                self._stamp, self._refused_stamp = stamp, None
                logger.info("loaded the %s %s again", self.what, self.path)
                self._on_change()
                return
        if stamp != self._refused_stamp:
            self._refused_stamp = stamp
            logger.warning("%s; what was loaded before stays in use", why)

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise Refused(
                f"cannot read the {self.what} {self.path}: {error.strerror}; check {self._option}"
            ) from error
        if not stat.S_ISREG(found.st_mode):
            # The reading of a pipe waits for a writer, and the daemon with it.
            raise Refused(f"the {self.what} {self.path} is no file; check {self._option}")
        if stat.S_IMODE(found.st_mode) & ~MODE_MAX:
            raise Refused(
                f"others may read the {self._secret} in {self.path}: run chmod 600 {self.path}"
            )
        return found.st_mtime_ns, found.st_ino, found.st_size


_watched: list[ReloadedFile[object]] = []


def watch(file: ReloadedFile[T]) -> ReloadedFile[T]:
    """Look at this file from now on each minute and on SIGHUP; return it."""
    _watched.append(file)  # type: ignore[arg-type]  # its content is of no concern here
    return file


def unwatch(file: ReloadedFile[T]) -> None:
    """Look at this file no more."""
    _watched[:] = [each for each in _watched if each is not file]


def watched_files() -> tuple[ReloadedFile[object], ...]:
    """Return the files of this process that are looked at."""
    return tuple(_watched)
