"""Which WAL goes to the archive from here, and what has left this disk read back."""
