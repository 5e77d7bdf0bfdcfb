"""The text that was shown last: a retry that fails as before shows nothing. Pure."""

from __future__ import annotations


class LastText:
    """The last text of one place that retries. It is empty at first."""

    def __init__(self) -> None:
        self._text = ""

    def changes_to(self, text: object) -> bool:
        """Keep the text, and return True if it differs from the one before: show it then."""
        before, self._text = self._text, str(text)
        return self._text != before

    def clear(self) -> None:
        """Forget the text after a success, so that the same failure counts as a new one."""
        self._text = ""
