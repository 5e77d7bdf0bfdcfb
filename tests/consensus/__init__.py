"""The consensus cores by scenarios in words (scenarios/), and by plain calls."""
