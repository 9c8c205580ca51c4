"""The guides as HTML: pages of docs/, which the wheel carries, without a script and without another host.

Each guide is served as Markdown too. Beside them are the golden vectors of docs/conformance, as one JSON document,
records for a client under test, and two example clients.
"""

import json
import re
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it.token import Token

_PACKAGE = Path(__file__).parents[2]
# In the wheel, and in the repository of an editable installation.
_FOLDERS = (_PACKAGE / "guides", _PACKAGE.parents[1] / "docs", _PACKAGE.parents[1])
GUIDES = {
    "contract": "What a client computes: formulas with one worked example",
    "protocol": "The protocol: what a client sends and reads, states, repeats, errors",
    "markets": "Markets: who sells how much for which payment, and what a client answers and checks",
    "clients": "Writing a client: what it must guarantee, one checklist, a client in shell, the SDK",
    "conformance": "Conformance: how to check a client or a coordinator",
    "own-data": "Own data: how records in files of an owner become features",
    "privacy": "Privacy: what is guaranteed, under which assumptions",
    "operator-api": "The API for operators: tasks, presets, defence, and what admins and viewers call",
    "glossary": "Glossary",
}
VECTORS = "/guide/vectors.json"
_VECTORS_PAGE = "conformance/README"
# What is served beside the guides: where it is in the repository, and what it is.
FILES = {
    "records.csv": ("conformance/records.csv", "144 records for a client under test: 64 features, then the label"),
    "custom_client.mjs": ("examples/custom_client.mjs", "a complete client for Node, without any package"),
    "custom_client.py": ("examples/custom_client.py", "a complete client for Python, with the package qidpfl-client"),
}
# A page with fewer sections needs no table of contents.
_FEW_SECTIONS = 4
_STYLE = "/docs/static/pages.css"
_LINK = re.compile(r"\]\(([^)#:]+)")


def guide_text(name: str) -> str:
    """The Markdown of a guide."""
    return _file(f"{name}.md").read_text(encoding="utf-8")


@cache
def golden_vectors() -> bytes:
    """All golden vectors as one JSON document: the content of each file by its name."""
    found: dict[str, Any] = {
        "what": "An implementation computes `expected` from `given` in every case. Texts, whole numbers, truth values"
        " and lists of payments or counts are equal; other numbers agree to a relative error of 1e-9, those of"
        " `next-model` to the precision of float32."
    }
    for file in sorted(_file("conformance/noise.json").parent.glob("*.json")):
        found[file.stem] = json.loads(file.read_bytes())
    return json.dumps(found, ensure_ascii=False).encode()


@cache
def guide_markdown(name: str) -> bytes:
    """The Markdown of a guide with links to what is served beside it."""
    return _LINK.sub(lambda found: f"]({_served(found[1]) or found[1]}", guide_text(name)).encode()


@cache
def guide_file(name: str) -> bytes:
    """A file beside the guides."""
    return _file(FILES[name][0]).read_bytes()


def _file(path: str) -> Path:
    for folder in _FOLDERS:
        file = folder / path
        if file.is_file():
            return file
    raise FileNotFoundError(f"the guide {path} is not installed")


@cache
def guide_page(name: str) -> str:
    """The HTML page of a guide."""
    # Loaded with the first page, so that the coordinator starts without it.
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(guide_text(name))
    sections: list[str] = []
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[place + 1].content
            token.attrSet("id", anchor(heading))
            if token.tag == "h2":
                sections.append(heading)
        _redirect(token.children or [])
    body = reader.renderer.render(tokens, reader.options, {})
    # After the title.
    title, end, rest = body.partition("</h1>")
    body = f"{title}{end}{_contents(sections)}{rest}"
    markdown = f'<a href="/guide/{name}.md">this page as Markdown</a>'
    return page(f"{name} · QI-DPFL", f"<nav>{_links()} · {markdown}</nav>\n<main>{body}</main>")


def page(title: str, body: str) -> str:
    """A whole HTML page."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="stylesheet" href="{_STYLE}">\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def guide_list() -> str:
    """The list of all guides, with what each is about."""
    items = [f'<li><a href="/guide/{name}">{name}</a>: {escape(text)}</li>' for name, text in GUIDES.items()]
    items.append(
        f'<li><a href="{VECTORS}">vectors.json</a>: golden vectors, with which a client checks its formulas</li>'
    )
    items += [f'<li><a href="/guide/{name}">{name}</a>: {escape(text)}</li>' for name, (_, text) in FILES.items()]
    return f"<ul>{''.join(items)}</ul>"


def _contents(sections: list[str]) -> str:
    """A table of contents."""
    if len(sections) < _FEW_SECTIONS:
        return ""
    items = (f'<li><a href="#{anchor(heading)}">{escape(heading)}</a></li>' for heading in sections)
    return f"<nav><ul>{''.join(items)}</ul></nav>"


def _links() -> str:
    names = ['<a href="/">start</a>', *(f'<a href="/guide/{name}">{name}</a>' for name in GUIDES)]
    return " · ".join([*names, '<a href="/docs">API</a>'])


def anchor(heading: str) -> str:
    """The anchor of a heading, as code hosts make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


def _redirect(tokens: "list[Token]") -> None:
    """Let links between guides lead to the served pages. A link to another file becomes text that says where it is."""
    plain = False
    for token in tokens:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            file, _, section = target.partition("#")
            served = _served(file)
            plain = file != "" and served is None
            if plain:
                _become_text(token, "")
            elif served is not None:
                token.attrSet("href", f"/guide/{served.removesuffix('.md')}" + (f"#{section}" if section else ""))
        elif token.type == "link_close" and plain:
            _become_text(token, " (in the source repository)")


def _served(file: str) -> str | None:
    """What is served under `/guide/` for a file that a guide links; None if nothing is."""
    name = file.rpartition("/")[2]
    if file == f"{_VECTORS_PAGE}.md":
        return VECTORS.rpartition("/")[2]
    return file if file.removesuffix(".md") in GUIDES else name if name in FILES else None


def _become_text(token: "Token", text: str) -> None:
    token.type, token.tag, token.nesting, token.content = "text", "", 0, text
