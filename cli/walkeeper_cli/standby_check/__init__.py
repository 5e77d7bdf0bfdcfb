"""R23: a server proves that its WAL is the log's. `local_server` and `log_reader` read, `checking`
compares, `proof` remembers it for `walkeeper restore`."""
