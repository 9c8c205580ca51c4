"""The dashboard: static files of this package. They hold no data; the page reads the public API with a token."""

from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Header, Response

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.web import StaticFile, page_files

from ...errors import RequestRefused

router = APIRouter(include_in_schema=False)


@lru_cache(maxsize=1)
def _files() -> dict[str, StaticFile]:
    return page_files("qidpfl_server", "dashboard")


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
