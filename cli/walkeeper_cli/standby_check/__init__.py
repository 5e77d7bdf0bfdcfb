"""R23: a server proves that its WAL is the log's.

`data_directory` and `log_reader` read, `checking` compares. `restored_standby` asks for
`walkeeper restore`, with `proof` as its memory; `vouching` asks for `settle --replayed-by`.
"""
