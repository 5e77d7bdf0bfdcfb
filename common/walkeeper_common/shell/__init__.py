"""The edges that all daemons share: sockets, signals, threads, HTTP, the operator's log."""
