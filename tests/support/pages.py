"""The pages of the repository, and the blocks of code on them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# What a test runs, as it is printed. Commands that no test runs are `console`.
EXECUTED = ("sh", "bash", "python")
DISTRIBUTIONS = ("shared", "server", "client", "experiments", "qidpfl")


class Block(NamedTuple):
    """A fenced block: its language (the first word after the fence), and its text."""

    language: str
    text: str


def pages() -> list[Path]:
    """Every page that a reader may copy commands from."""
    return [*sorted(ROOT.glob("*.md")), *(ROOT / name / "README.md" for name in DISTRIBUTIONS), *_docs()]


def _docs() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The blocks of a page, in its order; only those of some languages, if any are named."""
    for language, text in re.findall(r"^```(\w*)[^\n`]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if not languages or language in languages:
            yield Block(language, text)
