"""Places in a heap page and its tuples, for Python. heap_page.pxd has these and more in C.

Layout: bufpage.h, itemid.h, htup_details.h.
"""

from __future__ import annotations

PAGE_BYTES = 8192
# In a page's header.
LOWER, UPPER, SPECIAL = 12, 14, 16
# In a tuple's header.
XMIN, XMAX, INFOMASK = 0, 4, 20
