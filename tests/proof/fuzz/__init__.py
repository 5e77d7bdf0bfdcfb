"""Coverage-guided fuzzing of everything that reads bytes which we did not write.

    python -m tests.proof.fuzz TARGET [--minutes M | --runs N] [--json FILE]
    python -m tests.proof.fuzz all --runs N
    python -m tests.proof.fuzz TARGET --input FILE      one input, without atheris
    python -m tests.proof.fuzz fast_acks --plain --runs N     mutations without coverage: faster

A target is a function of bytes that raises if the shipping code breaks its contract (contract.py).
Plain pytest replays the kept inputs (corpus.py) by tests/proof/test_fuzz.py. A failing input
goes to crashes/ and is printed with the command that repeats it.
"""
