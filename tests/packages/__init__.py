"""The Debian packages: their text, in the gate."""
