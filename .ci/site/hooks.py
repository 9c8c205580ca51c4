"""Makes the pages of the documentation site that are no files of docs/, and lets links lead to them.

`mkdocs build` calls the functions `on_*`. Pages of the repository's root, notebooks, and source files to which a page
links become pages of the site. The reference is made from the programs (`reference.py`).
"""

import logging
import os
import re
from pathlib import Path, PurePosixPath

import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import as_markdown

ROOT = Path(__file__).parents[2]
# Warnings end a strict build.
log = logging.getLogger("mkdocs.hooks.qidpfl")

# Files of the repository beside docs/, and the pages of the site that they become.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    "CHANGELOG.md": "changelog.md",
    "examples/notebooks/paper.ipynb": "tutorials/paper.md",
    "examples/notebooks/own_mechanism.ipynb": "tutorials/own-mechanism.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}
_LANGUAGES = {".py": "python", ".toml": "toml", ".mjs": "javascript", ".example": "ini", ".csv": "text"}
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")
# What a browser loads by itself: not the address of the page itself, nor links that a reader follows.
_LOADED = re.compile(
    r"<(?:script|img|link(?! rel=\"canonical\")|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: of the root, of notebooks, of linked source files, and the reference."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for source, page in PAGES.items()}
    for page, source in _SOURCES.items():
        if source.endswith(".ipynb"):
            made[page] = as_markdown(made[page])
    texts = dict(made)
    for file in files.documentation_pages():
        texts[file.src_uri] = file.content_string
    for page, text in texts.items():
        for link, _ in _LINK.findall(_without_code(text)):
            source = _target(page, link)
            if _page_of(source).startswith("source/") and (ROOT / source).is_file():
                made[_page_of(source)] = _source_page(source)
    made |= reference.pages()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to their pages."""
    if page.file.src_uri.startswith(("source/", "reference/")):
        return markdown
    here = str(PurePosixPath(page.file.src_uri).parent)

    def changed(link: re.Match[str]) -> str:
        source = _target(page.file.src_uri, link[1])
        if not (ROOT / source).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, link[1])
        if (ROOT / source).is_dir():
            source = f"{source}/README.md"
        return f"]({os.path.relpath(_page_of(source), here)}{link[2] or ''})"

    return _LINK.sub(changed, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn about a page that would load something from another host."""
    for address in _LOADED.findall(output):
        log.warning("%s loads %s", page.file.src_uri, address)
    return output


def _target(page: str, link: str) -> str:
    """The file of the repository to which a link of a page leads."""
    source = _SOURCES.get(page, f"docs/{page}")
    return os.path.normpath(PurePosixPath(source).parent / link)


def _page_of(source: str) -> str:
    """The page or file of the site that shows a file of the repository."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    # MkDocs leaves out files whose names begin with a dot.
    return PAGES.get(source, f"source/{source.removeprefix('.')}.md")


def _source_page(source: str) -> str:
    language = _LANGUAGES.get(PurePosixPath(source).suffix, "text")
    text = (ROOT / source).read_text(encoding="utf-8")
    return f"# {source}\n\nA file of the source repository.\n\n````{language}\n{text}````\n"


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
