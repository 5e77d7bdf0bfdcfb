"""Where WAL is read from, what of it and in which order: folders, object stores, safekeepers."""
