"""What all daemons do at their edges: sockets, signals, threads, HTTP, the operator's log."""
