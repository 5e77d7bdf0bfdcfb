"""Coverage-guided fuzzing of everything that reads bytes which we did not write.

    python -m tests.fuzz TARGET [--minutes M | --runs N] [--json FILE]
    python -m tests.fuzz all --runs N
    python -m tests.fuzz TARGET --input FILE      one input, without atheris

A target is a function of bytes that raises if the shipping code breaks its contract (contract.py).
What is kept (corpus.py) is replayed by tests/test_fuzz.py in plain pytest. A failing input
goes to crashes/ and is printed with the command that repeats it.
"""
