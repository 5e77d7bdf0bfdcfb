"""Servers and daemons that a command makes, runs and destroys on this machine.

The commands are `demo` and `bench`, and `up` with its daemons.
"""
