"""`walkeeper attach` and `detach`: the standbys that a primary's commits wait for."""
