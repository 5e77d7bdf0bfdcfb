"""Files that a process must keep private, read again or make durable."""
