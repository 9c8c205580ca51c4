"""The documentation names only what exists, and everything that must be named."""

import importlib
import re
from pathlib import Path

import pytest

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.presets import PRESETS

ROOT = Path(__file__).parent.parent
PAPER_MAP = (ROOT / "docs" / "paper-map.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
README = (ROOT / "README.md").read_text()


def rows() -> list[tuple[str, ...]]:
    """The rows of the map whose last two columns are a function and a test."""
    lines = [line for line in PAPER_MAP.splitlines() if re.search(r"\| `[\w.]+` \| `test_\w+::\w+` \|$", line)]
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_row_of_the_paper_map_names_a_function_and_a_test(row: tuple[str, ...]) -> None:
    module, _, function = row[-2].strip("`").rpartition(".")
    package = "qidpfl_shared" if module.startswith("protocol") else "qidpfl_shared.core"
    assert hasattr(importlib.import_module(f"{package}.{module}"), function)
    file, test = row[-1].strip("`").split("::")
    source = (ROOT / "tests" / "unit" / "shared" / "core" / f"{file}.py").read_text()
    assert f"def {test}(" in source


def test_no_row_of_the_paper_map_lacks_its_function_or_test() -> None:
    body = PAPER_MAP.split("## Symbols")[1]
    tables = [line for line in body.splitlines() if line.startswith("|") and not re.match(r"\|[-|]+\|$", line)]
    headings = [line for line in tables if line.endswith("| function | test |")]
    assert len(tables) - len(headings) == len(rows())


def numbers(cells: list[str]) -> set[int]:
    """The numbers in cells like "4, 5" and "11–15"."""
    found: set[int] = set()
    for cell in cells:
        for low, high in re.findall(r"(\d+)(?:–(\d+))?", cell):
            found.update(range(int(low), int(high or low) + 1))
    return found


@pytest.mark.parametrize(("heading", "count"), [("## Equations", 33), ("## Algorithm 1", 21)])
def test_every_equation_and_algorithm_line_of_the_paper_is_mapped(heading: str, count: int) -> None:
    section = PAPER_MAP.split(heading)[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    assert numbers(first_cells) == set(range(1, count + 1))


@pytest.mark.parametrize("code", list(ErrorCode), ids=str)
def test_every_error_code_is_documented_with_its_status(code: ErrorCode) -> None:
    assert f"| `{code.value}` | {code.status} | {code.summary} |" in PROTOCOL


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_is_documented(name: str) -> None:
    assert f"| `{name}` |" in PROTOCOL


@pytest.mark.parametrize("target", re.findall(r"`make (\w+)`", README))
def test_every_command_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README + PAPER_MAP + PROTOCOL))))
def test_every_relative_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists() or (ROOT / "docs" / link).exists()
