"""The logs of a running safekeeper: their parts, their readers, and how long WAL is kept."""
