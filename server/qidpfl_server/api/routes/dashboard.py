"""The dashboard: static files of this package. They hold no data; the page reads the public API with a token."""

import hashlib
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Header, Response

from qidpfl_shared.protocol.errors import ErrorCode

from ...errors import RequestRefused

router = APIRouter(include_in_schema=False)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


class _File(NamedTuple):
    data: bytes
    media_type: str
    etag: str


@lru_cache(maxsize=1)
def _files() -> dict[str, _File]:
    """All files by their path below the folder, read once: a request can name no other file."""
    found: dict[str, _File] = {}

    def add(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                add(entry, f"{prefix}{entry.name}/")
            elif media_type := next((kind for end, kind in _TYPES.items() if entry.name.endswith(end)), None):
                data = entry.read_bytes()
                found[prefix + entry.name] = _File(data, media_type, f'"{hashlib.sha256(data).hexdigest()}"')

    add(files("qidpfl_server") / "dashboard", "")
    return found


@router.get("/dashboard")
async def index(if_none_match: Annotated[str, Header(max_length=1000)] = "") -> Response:
    """The page. It asks for a token."""
    return _answer("index.html", if_none_match)


@router.get("/dashboard/{file_path:path}")
async def file(file_path: str, if_none_match: Annotated[str, Header(max_length=1000)] = "") -> Response:
    """A file of the page."""
    return _answer(file_path or "index.html", if_none_match)


def _answer(name: str, if_none_match: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such file")
    headers = {"ETag": found.etag}
    if found.etag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(found.data, media_type=found.media_type, headers=headers)
