"""Every block of commands in the documentation is run by a test, or is marked as not run.

The language of a block says which: `sh`, `bash` and `python` are run as they are printed; `console` is not run, because
it needs other machines, hours or data. Of those, the programs and options must exist.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from qidpfl.__main__ import app as demo_app
from qidpfl_client.cli.app import app as client_app
from qidpfl_experiments.__main__ import app as experiments_app
from qidpfl_server.cli.app import app as server_app
from support.pages import EXECUTED, ROOT, blocks, pages

# The test that runs all blocks of a language on a page. It names the page; a page without executed blocks is not here.
RUN_BY = {
    ("README.md", "sh"): "tests/integration/examples/test_readme.py",
    ("README.md", "bash"): "tests/integration/examples/test_readme_commands.py",
    ("docs/clients.md", "python"): "tests/integration/client/test_sdk.py",
    ("docs/clients.md", "sh"): "tests/integration/examples/test_shell_client.py",
    ("docs/contract.md", "python"): "tests/unit/shared/test_contract_numbers.py",
    ("docs/own-data.md", "python"): "tests/integration/examples/test_python_blocks.py",
    ("docs/own-rules.md", "python"): "tests/integration/examples/test_python_blocks.py",
    ("docs/paper-map.md", "python"): "tests/test_docs.py",
    ("docs/python.md", "python"): "tests/integration/qidpfl/test_python_api.py",
    ("docs/tutorials/operations.md", "sh"): "tests/integration/examples/test_tutorials.py",
    ("docs/tutorials/testbed.md", "sh"): "tests/integration/examples/test_tutorials.py",
    ("docs/tutorials/three-hospitals.md", "sh"): "tests/integration/examples/test_tutorials.py",
    ("qidpfl/README.md", "python"): "tests/integration/qidpfl/test_python_api.py",
}
PROGRAMS = {
    "qidpfl-server": server_app,
    "qidpfl-client": client_app,
    "qidpfl-experiments": experiments_app,
    "qidpfl": demo_app,
}
OTHERS = ("make", "pip", "pipx", "python", "docker", "curl", "openssl", "source", "export", "cd", "git")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


EXECUTED_HERE = {(name_of(page), block.language) for page in pages() for block in blocks(page, *EXECUTED)}


def test_a_test_runs_every_block_that_is_not_marked() -> None:
    """Run a new block by a test and add it to the table, or mark it: ```console."""
    assert set(RUN_BY) == EXECUTED_HERE


@pytest.mark.parametrize(("page", "language"), RUN_BY, ids=map(":".join, RUN_BY))
def test_the_test_of_a_page_reads_it(page: str, language: str) -> None:
    source = (ROOT / RUN_BY[page, language]).read_text()
    # As "docs/python.md", or as ROOT / "docs" / "python.md".
    assert Path(page).name.removesuffix(".md") in source


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_block_without_a_language_has_no_commands(page: Path) -> None:
    for block in blocks(page, ""):
        first_words = {line.split()[0] for line in block.text.splitlines() if line.strip()}
        assert not first_words & {*PROGRAMS, *OTHERS}, block.text


def lines_of(text: str) -> Iterator[list[str]]:
    """The words and operators of every line; a quoted text may have several lines."""
    begun = ""
    for line in text.replace("\\\n", " ").splitlines():
        begun += line.removeprefix("$ ") + "\n"
        reader = shlex.shlex(begun, posix=True, punctuation_chars=";&|<>()")
        reader.whitespace_split = True
        try:
            yield list(reader)
        except ValueError:  # an open quotation
            continue
        begun = ""


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The calls of our programs in a block of shell, with their arguments."""
    for line in lines_of(text):
        words: list[str] = []
        for word in [*line, ";"]:
            if not set(word) <= set(";&|<>()"):
                words.append(word)
                continue
            names = [number for number, one in enumerate(words) if Path(one).name in PROGRAMS]
            if names:
                yield Path(words[names[0]]).name, words[names[0] + 1 :]
            words = []


CALLS = [
    (name_of(page), program, arguments)
    for page in pages()
    for block in blocks(page, "sh", "bash", "console")
    for program, arguments in commands(block.text)
]


@pytest.mark.parametrize(("page", "program", "arguments"), CALLS, ids=lambda value: None)
def test_every_command_on_a_page_exists_with_its_options(page: str, program: str, arguments: list[str]) -> None:
    command = typer.main.get_command(PROGRAMS[program])
    rest = list(arguments)
    while (inner := getattr(command, "commands", None)) is not None and rest and not rest[0].startswith("-"):
        assert rest[0] in inner, f"{program} has no command {rest[0]!r}"
        command = inner[rest.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    assert given <= known | {"--help"}, f"{page}: {program} {' '.join(arguments)}"


def test_commands_are_found_where_a_reader_would_type_them() -> None:
    typed = "$ a=1 .venv/bin/qidpfl-server audit --head x | tail; qidpfl demo \\\n  --rounds 2 > log # note"
    found = list(commands(typed))
    assert found == [("qidpfl-server", ["audit", "--head", "x"]), ("qidpfl", ["demo", "--rounds", "2"])]
