"""The guides as HTML: pages of docs/, which the wheel carries, without a script and without another host."""

import re
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

_PACKAGE = Path(__file__).parents[2]
# In the wheel, and in the repository of an editable installation.
_FOLDERS = (_PACKAGE / "guides", _PACKAGE.parents[1] / "docs")
GUIDES = {
    "contract": "What a client computes: formulas with one worked example",
    "protocol": "The protocol: messages, states, repeats, errors",
    "clients": "Writing a client: the SDK, and what every client must guarantee",
    "conformance": "Conformance: how to check a client or a coordinator",
    "own-data": "Own data: how records in files of an owner become features",
    "privacy": "Privacy: what is guaranteed, under which assumptions",
    "glossary": "Glossary",
}
_STYLE = "/docs/static/pages.css"


def guide_text(name: str) -> str:
    """The Markdown of a guide."""
    for folder in _FOLDERS:
        file = folder / f"{name}.md"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(f"the guide {name}.md is not installed")


@cache
def guide_page(name: str) -> str:
    """The HTML page of a guide."""
    # Loaded with the first page, so that the coordinator starts without it.
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(guide_text(name))
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", _anchor(tokens[place + 1].content))
        _redirect(token.children or [])
    body = reader.renderer.render(tokens, reader.options, {})
    return page(f"{name} · QI-DPFL", f"<nav>{_links()}</nav>\n<main>{body}</main>")


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
    return f"<ul>{''.join(items)}</ul>"


def _links() -> str:
    names = ['<a href="/">start</a>', *(f'<a href="/guide/{name}">{name}</a>' for name in GUIDES)]
    return " · ".join([*names, '<a href="/docs">API</a>'])


def _anchor(heading: str) -> str:
    """The anchor of a heading, as code hosts make it."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


def _redirect(tokens: "list[Token]") -> None:
    """Let links between guides lead to the served pages. A link to another file becomes text that says where it is."""
    plain = False
    for token in tokens:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            name, _, anchor = target.partition("#")
            plain = name != "" and name.removesuffix(".md") not in GUIDES
            if plain:
                _become_text(token, "")
            elif name:
                token.attrSet("href", f"/guide/{name.removesuffix('.md')}" + (f"#{anchor}" if anchor else ""))
        elif token.type == "link_close" and plain:
            _become_text(token, " (in the source repository)")


def _become_text(token: "Token", text: str) -> None:
    token.type, token.tag, token.nesting, token.content = "text", "", 0, text
