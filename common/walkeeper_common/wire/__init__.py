"""The messages of proposers, safekeepers and commands, and their bytes. No I/O."""
