"""`walkeeper restore`: the file that a restore_command asks for, or the proof that there is none.

guard            the exit codes, and the guard around all that could end a recovery by mistake
entry            the command from its words to its outcome
restoring        the request to all safekeepers, until a quorum has given the answer
wal_source       the same file from the archive, beside the safekeepers
archive_source   the same file from the archive alone
standby_check/   the proof that a server's WAL belongs to this log (docs/protocol.md R23)
"""
