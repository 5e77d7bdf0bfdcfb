"""A hook of mkdocs: README and the files beside it are pages of the site too.

README is the first page. A link to `docs/attach.md` in it becomes one to `attach.md`, and a link to
`../CHANGELOG.md` in a document becomes one to the page that this hook adds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "CODE_OF_CONDUCT.md": "CODE_OF_CONDUCT.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "LICENSE": "LICENSE.md",
}
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of PAGES."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text()
        content = _as_in_docs(text) if name.endswith(".md") else f"# {name}\n\n```\n{text}\n```\n"
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Point a document's links to files beside README at their pages."""
    for name, added in PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({added}")
    return markdown


def _as_in_docs(text: str) -> str:
    return LINK.sub(_moved, text)


def _moved(link: re.Match[str]) -> str:
    target, anchor = link[1], link[2] or ""
    return f"]({PAGES.get(target, target.removeprefix('docs/'))}{anchor})"
