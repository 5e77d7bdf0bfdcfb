"""The inputs that are kept: few enough to be replayed in every test, and all that once failed.

corpus/TARGET.zip       the smallest set with the coverage of all that was ever collected
findings/TARGET/NAME    an input that showed a defect, under a name that says which
crashes/TARGET-*        an input that fails now; not in the repository
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha1
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
FINDINGS = HERE / "findings"
CRASHES = HERE / "crashes"
KEPT_BYTES_MAX = 40_000  # the limit for one target
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same inputs make the same file


def archive(target: str) -> Path:
    """Return the path of a target's inputs."""
    return CORPUS / f"{target}.zip"


def corpus_of(target: str) -> dict[str, bytes]:
    """Return the minimised inputs by name, smallest first."""
    if not archive(target).exists():
        return {}
    with ZipFile(archive(target)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def inputs_of(target: str) -> dict[str, bytes]:
    """Return all inputs, by their names in an error."""
    found = [*(FINDINGS / target).glob("*"), *CRASHES.glob(f"{target}-*")]
    return corpus_of(target) | {str(path): path.read_bytes() for path in sorted(found)}


def unpack(target: str, folder: Path) -> None:
    """Write a file for each input, as libFuzzer wants it."""
    for data in inputs_of(target).values():
        (folder / sha1(data).hexdigest()).write_bytes(data)


def pack(target: str, inputs: Iterable[bytes]) -> tuple[int, int]:
    """Keep the smallest inputs, up to KEPT_BYTES_MAX; return how many, and how many bytes."""
    count = total = 0
    CORPUS.mkdir(exist_ok=True)
    with ZipFile(archive(target), "w") as packed:
        for data in sorted(set(inputs), key=lambda data: (len(data), data)):
            if total + len(data) > KEPT_BYTES_MAX:
                break
            info = ZipInfo(sha1(data).hexdigest()[:16], LONG_AGO)
            packed.writestr(info, data, ZIP_DEFLATED)
            count, total = count + 1, total + len(data)
    return count, total
