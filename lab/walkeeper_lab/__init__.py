"""Servers and daemons on this machine, for trials: `up`, `demo` and `bench`. No daemon needs it.

local/   programs, ports, child processes, and PostgreSQL servers that are removed at the end
up       safekeepers and a proposer beside a server of the user
demo/    the claims of walkeeper, shown on servers that are killed
bench/   walkeeper beside what an operator would use instead
"""
