"""Floods: what peers without a certificate or a password cost the commits and the memory."""
