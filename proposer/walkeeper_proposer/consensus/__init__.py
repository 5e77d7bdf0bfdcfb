"""What decides for a proposer: step(event) -> effects. No I/O, no clock, no randomness."""
