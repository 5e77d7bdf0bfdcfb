"""`walkeeper check`: a list of what a working installation needs, each OK, WARNING or FAILED."""
