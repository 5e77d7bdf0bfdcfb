"""R23: a server proves that its WAL is the log's.

`data_directory` reads the server. `log_reader` reads the log from safekeepers, and `archive_reader`
from the archive alone. `checking` compares. `restored_standby` runs the check
for `walkeeper restore`, with `proof` as its memory. `replayed_wal` runs it for
`settle --replayed-by`.
"""
