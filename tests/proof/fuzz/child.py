"""One target under libFuzzer, in a process of its own: libFuzzer ends the process that it is in.

    python -m tests.proof.fuzz.child TARGET [libFuzzer's arguments] CORPUS...

`runner` starts it; its output is libFuzzer's.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from random import Random

import atheris

from tests.proof.fuzz.contract import Target
from tests.proof.fuzz.targets import PACKAGES, load

# A length field that allocates more than its limit ends as a MemoryError, also where nobody
# touches the memory and RSS would not show it.
ADDRESS_SPACE_MAX = 3 << 30
SELF = "WALKEEPER_FUZZ_SELF"  # a merge starts its own program again: the name of one that it can
STRUCTURED = 0.5
REPAIRED = 0.85


def mutator_of(target: Target) -> Callable[[bytes, int, int], bytes]:
    """Return a mutator: libFuzzer's own mutations or ours, and then mostly a repair."""

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        random = Random(seed)
        if target.alter is not None and random.random() < STRUCTURED:
            data = target.alter(data, random)
        else:
            data = (
                atheris.Mutate(data, len(data))
                if random.random() < 0.2
                else atheris.Mutate(data, size_max)
            )
        if target.repair is not None and random.random() < REPAIRED:
            data = target.repair(data, random)
        return data[:size_max]

    return mutate


def main() -> None:
    name = sys.argv.pop(1)
    sys.argv[0] = os.environ.get(SELF, sys.argv[0])
    with atheris.instrument_imports(include=list(PACKAGES)):
        target = load(name)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    own = target.alter is not None or target.repair is not None
    more = {"custom_mutator": mutator_of(target)} if own else {}
    arguments = [*sys.argv, f"-max_len={target.bytes_max}"]
    atheris.Setup(arguments, target.run, enable_python_coverage=True, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
