"""The Debian packages: their text in the gate, and a play in trees of Debian (`make deb-test`)."""
