"""A hook of mkdocs: pages outside `docs/` join the site, and links to files of the repository work.

A link to a file that is no page becomes its text, which names the file.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

OUTSIDE = {
    "README.md": "index.md",
    **{
        name: name
        for name in (
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "CODE_OF_CONDUCT.md",
            "demo/README.md",
            "deploy/grafana/README.md",
        )
    },
}
"""File of the repository -> its page on the site."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside `docs/`."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page with links that work on the site."""
    place = page.file.src_uri
    source = next((name for name, uri in OUTSIDE.items() if uri == place), f"docs/{place}")

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if ":" in target or not (ROOT / path).exists():
            return match[0]
        uri = OUTSIDE.get(path) or (path[5:] if path.startswith("docs/") else None)
        if uri is None:
            return text
        relative = posixpath.relpath(uri, posixpath.dirname(place) or ".")
        return f"{image}[{text}]({relative}{anchor or ''})"

    return _LINK.sub(link, markdown)
