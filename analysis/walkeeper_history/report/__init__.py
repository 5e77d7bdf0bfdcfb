"""`walkeeper history report`: the data that it gathers, and the page that shows them."""
