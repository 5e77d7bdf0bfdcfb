"""R23: a server proves that its WAL is the log's.

`data_directory` and `log_reader` read, and `checking` compares. `restored_standby` runs the check
for `walkeeper restore`, with `proof` as its memory. `replayed_wal` runs it for
`settle --replayed-by`.
"""
