"""Failovers in rounds: `python -m tests.failover --help`."""
