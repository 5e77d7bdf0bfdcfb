"""Rows as Arrow columns, and Arrow columns as the text of COPY, CSV and SQL."""
