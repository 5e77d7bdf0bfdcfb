"""What decides for a safekeeper: step(event) -> effects. No I/O, no clock, no randomness."""
