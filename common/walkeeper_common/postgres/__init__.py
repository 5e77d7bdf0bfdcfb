"""PostgreSQL's protocols and its WAL's format, as bytes in and bytes out. No I/O."""
