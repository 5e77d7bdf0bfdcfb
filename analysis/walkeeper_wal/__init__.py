"""WAL as it lies in archives, directories and safekeepers, read without a server.

sources/   files, archives and live logs: chosen, opened, and read in the order of the log
records/   the walk over the records of a segment, in numpy and compiled
"""
