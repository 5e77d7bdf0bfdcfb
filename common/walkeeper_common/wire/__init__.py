"""What proposers, safekeepers and commands say to each other, and its bytes. No I/O."""
