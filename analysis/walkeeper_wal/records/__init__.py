"""From a segment's bytes to its records, as compiled loops or with numpy. Reads no file."""
