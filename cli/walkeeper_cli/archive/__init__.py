"""`walkeeper archive`: the contents of an archive, the WAL still needed, and the WAL to prune."""
