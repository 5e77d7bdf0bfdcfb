"""The commands, one module each: it puts the flags into a settings object, and makes one call.

A module imports what its command needs only when the command runs, so that help is quick.
"""
