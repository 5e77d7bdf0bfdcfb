"""The deciding core of a safekeeper: step(event) -> effects. No I/O, no clock, no randomness."""
