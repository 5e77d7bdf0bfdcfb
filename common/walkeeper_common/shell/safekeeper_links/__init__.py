"""Connections between a proposer, a command or a program and one safekeeper."""
