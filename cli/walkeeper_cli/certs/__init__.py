"""The certificate authority of a cluster, and the TLS files that it issues."""
