"""The deciding core of a proposer: step(event) -> effects. No I/O, no clock, no randomness."""
