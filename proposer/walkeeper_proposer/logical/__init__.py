"""Logical logs: pgoutput's messages become entries, and positions become LSNs again. No I/O."""
