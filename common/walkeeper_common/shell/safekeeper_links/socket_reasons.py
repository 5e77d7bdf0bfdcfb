"""Why a socket could not connect, in the system's words. A shell."""

from __future__ import annotations

import os


def reason_of(error: OSError) -> str:
    """Return `Connection refused` and the like.

    asyncio puts the number and the address into the text, which the caller has named already. The
    numbers of TLS and of names that are not found are not the system's."""
    import ssl  # only after a failure: `restore` starts for each segment

    is_own = isinstance(error, ssl.SSLError) or error.errno is None or error.errno <= 0
    return error.strerror or str(error) if is_own else os.strerror(error.errno or 0)
