"""The pages of the documentation: guides, Swagger UI and the start page, without any other host."""

import asyncio
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from qidpfl_server.api.document.guides import FILES, GUIDES, VECTORS, guide_text
from qidpfl_server.settings import Settings
from support.openapi_document import with_app

ROOT = Path(__file__).parents[4]
STATIC = ROOT / "server/qidpfl_server/api/document/static"
# Of the npm package swagger-ui-dist 5.35.0.
VENDORED = {
    "swagger-ui-bundle.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}
PAGES = ["/", "/guide", "/docs", *(f"/guide/{name}" for name in GUIDES)]
PLAIN = [*(f"/guide/{name}.md" for name in GUIDES), *(f"/guide/{name}" for name in FILES)]


def get(*paths: str, settings: Settings | None = None) -> list[httpx.Response]:
    async def answers(app: object) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return [await http.get(path) for path in paths]

    found: list[httpx.Response] = with_app(lambda app: asyncio.run(answers(app)), settings)
    return found


class Links(HTMLParser):
    """What a page links and loads, its anchors, and inline scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.append(found["href"])
        elif tag in ("script", "img", "link"):
            self.loads.append(found.get("src") or found["href"])
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "style" or any(name == "style" or name.startswith("on") for name in found):
            self.inline.append(tag)


def test_every_page_loads_only_files_of_this_server_and_every_link_leads_somewhere() -> None:
    pages = dict(zip(PAGES, get(*PAGES), strict=True))
    assert {answer.status_code for answer in pages.values()} == {200}
    seen = {path: Links(answer.text) for path, answer in pages.items()}
    loaded = sorted({one for page in seen.values() for one in page.loads})
    assert {answer.status_code for answer in get(*loaded)} == {200}
    for path, page in seen.items():
        assert not page.inline
        for link in page.links:
            target, _, anchor = link.partition("#")
            assert (target or path) in (*PAGES, *PLAIN, VECTORS, "/openapi.json", "/dashboard"), (path, link)
            assert not anchor or anchor in seen[target or path].anchors, (path, link)


@pytest.mark.parametrize("name", list(GUIDES))
def test_a_guide_shows_all_headings_and_tables_of_its_page(name: str) -> None:
    (answer,) = get(f"/guide/{name}")
    text = re.sub(r"```.*?```", "", guide_text(name), flags=re.DOTALL)
    headings = re.findall(r"^#+ ", text, re.MULTILINE)
    assert len(re.findall(r"<h[1-6] ", answer.text)) == len(headings)
    assert answer.text.count("<table>") == len(re.findall(r"^\|[-|: ]+\|$", text, re.MULTILINE))
    assert guide_text(name) == (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", list(GUIDES))
def test_a_guide_is_served_as_markdown_whose_links_lead_to_what_is_served(name: str) -> None:
    page, text = get(f"/guide/{name}", f"/guide/{name}.md")
    assert text.headers["content-type"] == "text/markdown; charset=utf-8"
    assert f'href="/guide/{name}.md"' in page.text
    links = set(re.findall(r"\]\(([^)#:]+)", text.text))
    asked = [f"/guide/{link}" for link in sorted(links) if "/" not in link and link.removesuffix(".md") in GUIDES]
    assert {answer.status_code for answer in get(*asked)} <= {200}
    # The rest of the text is that of the repository.
    assert re.sub(r"\]\([^)]*\)", "", text.text) == re.sub(r"\]\([^)]*\)", "", guide_text(name))


def test_the_guides_come_with_records_and_two_clients() -> None:
    records, node, python = get(*(f"/guide/{name}" for name in FILES))
    assert records.content == (ROOT / "docs/conformance/records.csv").read_bytes()
    assert node.content == (ROOT / "examples/custom_client.mjs").read_bytes()
    assert python.content == (ROOT / "examples/custom_client.py").read_bytes()
    types = [answer.headers["content-type"].partition(";")[0] for answer in (records, node, python)]
    assert types == ["text/csv", "text/javascript", "text/plain"]
    html, text = get("/guide/clients", "/guide/clients.md")
    assert 'href="/guide/custom_client.mjs"' in html.text and "](custom_client.mjs)" in text.text
    assert "](vectors.json)" in text.text and "](records.csv)" in text.text


def test_the_document_has_the_whole_contract() -> None:
    (answer,) = get("/openapi.json")
    assert guide_text("contract") in answer.json()["info"]["description"]
    assert "[/guide](/guide)" in answer.json()["info"]["description"]


def test_the_start_page_names_no_dashboard_that_is_not_there() -> None:
    page, dashboard = get("/", "/dashboard")
    assert ('href="/dashboard"' in page.text) == (dashboard.status_code == 200)


def test_unknown_guides_and_files_are_not_found() -> None:
    answers = get(
        "/guide/operations",
        "/guide/operations.md",
        "/guide/README.md",
        "/guide/..%2fREADME",
        "/docs/static/README.md",
        "/docs/static/..%2fguides.py",
    )
    assert {answer.status_code for answer in answers} == {404}


def test_the_pages_follow_the_rule_of_the_document() -> None:
    closed = Settings(host="0.0.0.0")
    assert {answer.status_code for answer in get(*PAGES, *PLAIN, "/openapi.json", settings=closed)} == {404}
    opened = Settings(host="0.0.0.0", open_docs=True)
    assert {answer.status_code for answer in get(*PAGES, *PLAIN, "/openapi.json", settings=opened)} == {200}


@pytest.mark.parametrize("name", list(VENDORED))
def test_the_vendored_files_are_unchanged(name: str) -> None:
    assert hashlib.sha256((STATIC / "swagger-ui" / name).read_bytes()).hexdigest() == VENDORED[name]
    assert (STATIC / "swagger-ui" / "LICENSE").read_text().lstrip().startswith("Apache License")
    assert "5.35.0" in (STATIC / "README.md").read_text()


def test_a_page_that_is_not_served_is_said_to_be_in_the_repository() -> None:
    operators, protocol = get("/guide/operator-api", "/guide/protocol")
    assert "own-rules.md (in the source repository)" in operators.text
    assert 'href="/guide/own-data"' in protocol.text


def test_a_long_guide_begins_with_links_to_all_its_sections() -> None:
    (answer,) = get("/guide/protocol")
    sections = re.findall(r"^## (.+)$", re.sub(r"```.*?```", "", guide_text("protocol"), flags=re.DOTALL), re.MULTILINE)
    contents = answer.text.split("</h1>")[1].split("</nav>")[0]
    assert re.findall(r">([^<>]+)</a>", contents) == sections


def test_the_golden_vectors_are_served_as_they_are_stored_and_linked_where_an_author_begins() -> None:
    answer, *pages = get(VECTORS, "/", "/guide", "/docs", *(f"/guide/{name}" for name in ("clients", "protocol")))
    served = answer.json()
    files = sorted((ROOT / "docs" / "conformance").glob("*.json"))
    assert sorted(served) == sorted(["what", *(file.stem for file in files)])
    assert all(served[file.stem] == json.loads(file.read_text()) for file in files)
    assert all(f'href="{VECTORS}"' in page.text for page in pages)
    (document,) = get("/openapi.json")
    assert VECTORS in document.json()["info"]["description"]


def test_the_page_of_the_api_has_links_for_a_reader_without_javascript() -> None:
    (answer,) = get("/docs")
    plain = answer.text.split("<noscript>")[1].split("</noscript>")[0]
    assert {"/openapi.json", "/guide"} <= set(Links(plain).links)


def test_the_build_takes_every_guide() -> None:
    hook = (ROOT / "server" / "hatch_build.py").read_text()
    names = re.search(r"GUIDES = \((.*?)\)", hook, re.DOTALL)
    assert names is not None and re.findall(r'"([\w-]+)"', names[1]) == list(GUIDES)
    ignored, image = (ROOT / ".dockerignore").read_text(), (ROOT / "Dockerfile.server").read_text()
    assert '"conformance").glob("*.json")' in hook and "!docs/conformance/*.json\n" in ignored
    assert all(f"!docs/{name}.md\n" in ignored for name in GUIDES) and "COPY docs docs\n" in image
    assert '"records.csv"' in hook and "!docs/conformance/records.csv\n" in ignored
    examples = [place for place, _ in FILES.values() if place.startswith("examples/")]
    assert all(f'"{Path(place).name}"' in hook and f"!{place}\n" in ignored for place in examples)
    assert "COPY examples examples\n" in image
