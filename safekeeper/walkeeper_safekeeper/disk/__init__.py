"""The ports of storage on a real file system, with a bound for all its open files."""
