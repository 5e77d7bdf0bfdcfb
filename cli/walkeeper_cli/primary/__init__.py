"""`walkeeper attach` and `detach`: whom a primary's commits wait for."""
