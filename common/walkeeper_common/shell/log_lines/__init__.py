"""The lines of a process: the log of the operator, the audit, and their latest."""
