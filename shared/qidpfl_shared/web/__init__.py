"""Static files of pages: charts, tables, styles and the libraries d3 and Observable Plot.

The dashboard of the coordinator and the page of experiments show the same charts. Each has a folder of its own files,
and serves these ones below `web/`. Every page has `PAGE_POLICY` as its Content-Security-Policy.
"""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

# A page loads everything from its own server and has neither inline scripts nor inline styles.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


class StaticFile(NamedTuple):
    """One file with what a server says about it."""

    data: bytes
    media_type: str
    etag: str


def page_files(package: str, folder: str) -> dict[str, StaticFile]:
    """The files of a page in a folder of a package, and the shared ones below `web/`, by their path.

    They are read at once: a request can name no other file.
    """
    return _below(files(package) / folder, "") | _below(files(__name__), "web/")


def _below(folder: Traversable, prefix: str) -> dict[str, StaticFile]:
    found: dict[str, StaticFile] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _below(entry, f"{prefix}{entry.name}/")
        elif media_type := next((kind for end, kind in _TYPES.items() if entry.name.endswith(end)), None):
            data = entry.read_bytes()
            found[prefix + entry.name] = StaticFile(data, media_type, f'"{hashlib.sha256(data).hexdigest()}"')
    return found
