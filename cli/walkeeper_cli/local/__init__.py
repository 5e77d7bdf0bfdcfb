"""Servers and daemons that a command makes, runs and destroys on this machine:
`demo`, `bench`, and the daemons of `up`."""
