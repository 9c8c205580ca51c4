"""The pages of the documentation: `/`, `/guide` and `/docs`. All files come from this package, not from other hosts."""

from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from qidpfl_shared.protocol.compatibility import PROTOCOL_VERSION
from qidpfl_shared.protocol.errors import ErrorCode

from ...errors import RequestRefused
from .guides import (
    FILES,
    GUIDES,
    VECTORS,
    golden_vectors,
    guide_file,
    guide_list,
    guide_markdown,
    guide_page,
    page,
)

router = APIRouter(include_in_schema=False)
_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
_TEXT = "text/plain; charset=utf-8"
_FILE_TYPES = {".csv": "text/csv; charset=utf-8", ".mjs": _TYPES[".js"]}
# What `/docs/static` serves, by the last part of the path.
_STATIC_FILES = {
    "swagger-ui-bundle.js": "swagger-ui/swagger-ui-bundle.js",
    "swagger-ui.css": "swagger-ui/swagger-ui.css",
    "docs.js": "docs.js",
    "pages.css": "pages.css",
}
_DOCS = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>API · QI-DPFL</title>
<link rel="stylesheet" href="/docs/static/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript><p>This page needs JavaScript. The same without: <a href="/openapi.json">openapi.json</a>,
<a href="/guide">the guides</a>, <a href="/guide/vectors.json">the golden vectors</a>.</p></noscript>
<script src="/docs/static/swagger-ui-bundle.js"></script>
<script src="/docs/static/docs.js"></script>
</body>
</html>
"""


@router.get("/")
async def start_page(request: Request) -> HTMLResponse:
    """Where a visitor finds the dashboard, the guides and the API."""
    has_dashboard = request.app.serves("/dashboard")
    dashboard = '<li><a href="/dashboard">dashboard</a>: the market, live</li>' if has_dashboard else ""
    body = (
        f"<main><h1>QI-DPFL coordinator</h1><p>Protocol {PROTOCOL_VERSION}.</p><ul>{dashboard}"
        '<li><a href="/guide">guides</a>: how to write a client, and what it must guarantee;'
        f' <a href="{VECTORS}">golden vectors</a> for its formulas</li>'
        '<li><a href="/docs">API</a>: every operation; as a document: <a href="/openapi.json">openapi.json</a></li>'
        "</ul></main>"
    )
    return HTMLResponse(page("QI-DPFL coordinator", body))


@router.get("/guide")
async def list_guides() -> HTMLResponse:
    """The list of the guides."""
    return HTMLResponse(page("Guides · QI-DPFL", f"<main><h1>Guides</h1>{guide_list()}</main>"))


@router.get(VECTORS)
async def get_vectors() -> Response:
    """The golden vectors."""
    return Response(golden_vectors(), media_type="application/json")


@router.get("/guide/{guide}")
async def show_guide(guide: str) -> Response:
    """One guide as a page, or as Markdown with `.md`; or a file beside the guides."""
    if guide in GUIDES:
        return HTMLResponse(guide_page(guide))
    if guide.endswith(".md") and guide.removesuffix(".md") in GUIDES:
        return Response(guide_markdown(guide.removesuffix(".md")), media_type="text/markdown; charset=utf-8")
    if guide in FILES:
        return Response(guide_file(guide), media_type=_FILE_TYPES.get(Path(guide).suffix, _TEXT))
    raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such guide")


@router.get("/docs")
async def show_docs() -> HTMLResponse:
    """Swagger UI on the document of this coordinator."""
    return HTMLResponse(_DOCS)


@router.get("/docs/static/{file}")
async def get_static_file(file: str) -> Response:
    """A script or style sheet of the pages."""
    if file not in _STATIC_FILES:
        raise RequestRefused(ErrorCode.NOT_FOUND, "there is no such file")
    return Response(_content(file), media_type=_TYPES[Path(file).suffix])


@cache
def _content(name: str) -> bytes:
    return (_STATIC / _STATIC_FILES[name]).read_bytes()
