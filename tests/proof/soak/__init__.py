"""The search with fresh seeds each time: never part of the gate, which must not depend on luck.

    make soak MINUTES=60            python -m tests.proof.soak --help

A find is printed as one command that repeats it. The seed goes into the kept seeds with its mend.
"""
