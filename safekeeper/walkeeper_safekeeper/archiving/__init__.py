"""Send segments to the archive, and read back WAL that has left this disk."""
