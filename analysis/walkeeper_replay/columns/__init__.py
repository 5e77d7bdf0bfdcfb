"""Rows as Arrow columns, and those as the text of COPY, CSV and SQL."""
