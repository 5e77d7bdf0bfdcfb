"""Changes of rows: who inserted, updated or deleted which row when, from one range of WAL."""
