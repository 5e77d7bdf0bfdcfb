"""TLS: the layer over bytes, its transport, the file with the key, and the watch over it."""
