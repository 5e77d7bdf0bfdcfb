"""Mirrors in Delta tables, compared with their tables while the stream and its log are killed."""
