"""The record of the certificates that an authority has issued: `issued.txt` in its directory.

    3F0A… 1803463200 walkeeper://*/safekeeper/1      serial number, end in Unix time, URIs

`walkeeper certs revoke` finds a certificate in it by the name of its owner. The record has no
secret. Certificates from before the record are known by their file or serial number alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from walkeeper_common.errors import Refused

RECORD = "issued.txt"


@dataclass(frozen=True, slots=True)
class Issued:
    """One certificate. The record may lack it: its end and its URIs are then not known."""

    serial: int
    end_s: int | None = None
    uris: tuple[str, ...] = ()

    def is_valid(self, now_s: float) -> bool:
        """Return whether the certificate has not ended, as far as it is known."""
        return self.end_s is None or now_s < self.end_s


class IssuedCertificates:
    """The record in an authority's directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, RECORD)

    def add(self, issued: Issued) -> None:
        """Add one line durably; raise Refused if that fails."""
        assert issued.end_s is not None, f"{issued=}"
        line = f"{issued.serial:X} {issued.end_s} {' '.join(issued.uris)}\n"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Refused(f"cannot write {self._path}: {error.strerror}") from error

    def read(self) -> list[Issued]:
        """Return all that were issued, the oldest first; raise Refused for a damaged record."""
        try:
            with open(self._path, encoding="utf-8") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Refused(f"cannot read {self._path}: {error.strerror}") from error
        return [self._parse(line) for line in lines]

    def _parse(self, line: str) -> Issued:
        try:
            serial, end, *uris = line.split(" ")
            return Issued(int(serial, 16), int(end), tuple(uris))
        except ValueError as error:
            raise Refused(
                f"{self._path} has a damaged line, {line!r}: remove it, and revoke by serial number"
            ) from error
