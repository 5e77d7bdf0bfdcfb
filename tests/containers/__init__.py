"""A play of docker/compose.yaml in a real container engine; `make containers`."""
