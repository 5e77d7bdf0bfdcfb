"""The drill: incidents on real processes, and the answer of each view of an operator.

    python -m tests.proof.drill --list          as root; docs/drill.md has the results

The drill causes an incident, asks each view until it reports the incident, and runs the printed
remedy. It fails if a view is silent, if the remedy does not help, or if an
acknowledged row is missing.
"""
