"""`walkeeper history report`: what it gathers, and the page that it makes of that."""
