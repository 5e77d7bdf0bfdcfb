"""The rows of each table from a segment's records, and the filters that let a reader skip some."""
