"""The documentation names only what exists, and everything that must be named."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import typer
from fastapi.routing import APIRoute

from qidpfl_client.api import AdminApi, TaskApi
from qidpfl_client.cli.app import app as client_app
from qidpfl_experiments.__main__ import app as experiments_app
from qidpfl_experiments.methods import BY_NAME
from qidpfl_experiments.results.tables import FILES
from qidpfl_flower.cli import app as flower_app
from qidpfl_server.api.document.guides import anchor as anchor_of
from qidpfl_server.api.routes import clients, controls, models, overview, rounds, tasks, tokens
from qidpfl_server.cli.app import app
from qidpfl_server.cli.tasks import tasks_app
from qidpfl_server.cli.tokens import tokens_app
from qidpfl_server.domain import EndReason
from qidpfl_server.settings import Settings
from qidpfl_shared.core.custom_rules import RewardQuestion, SelectionQuestion
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.mechanisms import MechanismName
from qidpfl_shared.core.reward import RewardPolicy
from qidpfl_shared.protocol.errors import PROBLEM_MEDIA_TYPE, ErrorCode
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import RoundState, TaskState
from qidpfl_shared.protocol.presets import PRESETS
from qidpfl_shared.protocol.task_spec import SelectionRule

ROOT = Path(__file__).parent.parent
PAPER_MAP = (ROOT / "docs" / "paper-map.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
OPERATOR_API = (ROOT / "docs" / "operator-api.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
README = (ROOT / "README.md").read_text()
PARTICIPANT = (ROOT / "docs" / "participant.md").read_text()
CLIENTS = (ROOT / "docs" / "clients.md").read_text()
WORKLOADS = (ROOT / "docs" / "workloads.md").read_text()
DOCKER = (ROOT / "docs" / "docker.md").read_text()
OWN_RULES = (ROOT / "docs" / "own-rules.md").read_text()
EXPERIMENTS = (ROOT / "docs" / "experiments.md").read_text()
FLOWER = (ROOT / "docs" / "flower.md").read_text()
RESULTS = ROOT / "docs" / "results"
PAGES = [page for folder in (".", "docs", "docs/tutorials") for page in sorted((ROOT / folder).glob("*.md"))]
LINKS = [(page, link) for page in PAGES for link in sorted(set(re.findall(r"\]\(([^)#:]+)\)", page.read_text())))]


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
    assert f"| `{name}` |" in OPERATOR_API


def routes() -> list[tuple[str, set[str]]]:
    """Every operation under /v1 as the document names it, and the error codes that OpenAPI gives for it."""
    found: list[tuple[str, set[str]]] = []
    for router in (part.router for part in (tasks, clients, rounds, models, overview, controls, tokens)):
        for route in router.routes:
            assert isinstance(route, APIRoute)
            path = route.path.replace("/v1/tasks/{task_id}", "…")
            codes = {
                code
                for answer in route.responses.values()
                for code in answer.get("content", {}).get(PROBLEM_MEDIA_TYPE, {}).get("examples", {})
            }
            found.extend((f"{method} {path}", codes) for method in route.methods or ())
    return found


@pytest.mark.parametrize(("operation", "codes"), routes(), ids=[operation for operation, _ in routes()])
def test_every_operation_is_documented_with_its_error_codes(operation: str, codes: set[str]) -> None:
    section = PROTOCOL.split("### Errors per operation")[1] + OPERATOR_API.split("## Errors per operation")[1]
    common = set(re.findall(r"`(\w+)`", section.split("Every operation may also answer")[1].split(";")[0]))
    (row,) = [line for line in section.splitlines() if line.startswith(f"| `{operation}` |")]
    assert set(re.findall(r"`(\w+)`", row)) == codes - common


@pytest.mark.parametrize("state", [*TaskState, *RoundState, *SpendState], ids=str)
def test_every_state_is_documented(state: str) -> None:
    assert f"| `{state}` |" in PROTOCOL


@pytest.mark.parametrize("word", [*EndReason, *Standing], ids=str)
def test_every_reason_is_documented(word: str) -> None:
    assert f"`{word}`" in PROTOCOL


def default_of(setting: str) -> str:
    """A default as an environment variable would say it."""
    default = Settings.model_fields[setting].default
    return "" if default is None else str(default)


@pytest.mark.parametrize("setting", list(Settings.model_fields))
def test_every_setting_is_in_the_example_and_in_the_table_with_its_default(setting: str) -> None:
    variable, default = f"QIDPFL_{setting.upper()}", default_of(setting)
    assert re.search(rf"^# .+\n{variable}={re.escape(default)}$", EXAMPLE, re.MULTILINE)
    cell = f"`{default}`" if default else ""
    assert re.search(rf"^\| `{variable}` \| {re.escape(cell)} ?\| .+ \|$", OPERATIONS, re.MULTILINE)


def test_the_example_and_the_table_name_no_setting_that_does_not_exist() -> None:
    known = {f"QIDPFL_{setting.upper()}" for setting in Settings.model_fields}
    assert set(re.findall(r"QIDPFL_\w+", EXAMPLE + OPERATIONS)) == known


def test_the_example_can_be_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in re.findall(r"^(QIDPFL_\w+)=(.*)$", EXAMPLE, re.MULTILINE):
        monkeypatch.setenv(variable, value)
    assert Settings().model_dump() == {name: field.default for name, field in Settings.model_fields.items()}


@pytest.mark.parametrize(
    "name", [command.name for group in (app, tasks_app, tokens_app) for command in group.registered_commands]
)
def test_every_command_is_documented(name: str) -> None:
    assert name in re.split(r"[\s|]+", OPERATIONS.split("```")[1])


def options_of(commands: typer.Typer) -> list[tuple[str, str]]:
    """Every command with each of its options."""
    group = typer.main.get_group(commands)
    return [
        (name, option)
        for name, command in group.commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    ]


CLIENT_OPTIONS = options_of(client_app)
EXPERIMENT_OPTIONS = options_of(experiments_app)
FLOWER_OPTIONS = options_of(flower_app)


@pytest.mark.parametrize(("command", "option"), CLIENT_OPTIONS, ids=map(" ".join, CLIENT_OPTIONS))
def test_every_option_of_the_client_is_documented(command: str, option: str) -> None:
    assert re.search(rf"`(qidpfl-client {command} )?{option}[` ]", PARTICIPANT)


@pytest.mark.parametrize("name", sorted({command for command, _ in CLIENT_OPTIONS}))
def test_every_command_of_the_client_is_documented(name: str) -> None:
    assert f"qidpfl-client {name}" in PARTICIPANT


@pytest.mark.parametrize("option", sorted({option for _, option in FLOWER_OPTIONS} - {"--version"}))
def test_every_option_of_the_flower_client_is_documented(option: str) -> None:
    own = {one for command, one in CLIENT_OPTIONS if command == "run"}
    assert f"`{option}`" in FLOWER or option in own


@pytest.mark.parametrize("option", sorted({option for _, option in EXPERIMENT_OPTIONS}))
def test_every_option_of_the_experiments_is_documented(option: str) -> None:
    assert re.search(rf"{option}\b", EXPERIMENTS)


@pytest.mark.parametrize("name", sorted(typer.main.get_group(experiments_app).commands))
def test_every_command_of_the_experiments_is_documented(name: str) -> None:
    assert f"qidpfl-experiments {name}" in EXPERIMENTS


@pytest.mark.parametrize("name", [*BY_NAME, *FILES.values()])
def test_every_method_and_every_table_of_the_experiments_is_documented(name: str) -> None:
    assert f"`{name}`" in EXPERIMENTS


@pytest.mark.parametrize("page", sorted(RESULTS.rglob("*.md")), ids=lambda page: str(page.relative_to(RESULTS)))
def test_results_link_only_what_is_there(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()) if not link.startswith("http")]
    assert links and all((page.parent / link).exists() for link in links)


@pytest.mark.parametrize("name", [*RewardPolicy, *SelectionRule], ids=str)
def test_every_policy_and_every_rule_is_documented(name: str) -> None:
    kind = "game.policy" if isinstance(name, RewardPolicy) else "selection.rule"
    table = OPERATOR_API.split(f"| `{kind}` | wh")[1].split("\n\n")[0]
    assert f"| `{name}` |" in table


@pytest.mark.parametrize("question", [RewardQuestion, SelectionQuestion])
def test_everything_that_a_rule_is_asked_is_documented(question: type) -> None:
    table = OWN_RULES.split(f"| of a `{question.__name__}` | what |")[1].split("\n\n")[0]
    told = [name.removesuffix("()") for name in re.findall(r"`([\w()]+)`", table)]
    known = {*question.__dataclass_fields__, *(name for name in vars(question) if not name.startswith("_"))}  # type: ignore[attr-defined]
    assert known <= set(told)


@pytest.mark.parametrize("name", list(MechanismName), ids=str)
def test_every_mechanism_is_documented(name: str) -> None:
    assert f"| `{name}` |" in PARTICIPANT


@pytest.mark.parametrize("target", re.findall(r"`make (\w+)`", README))
def test_every_command_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_example_in_the_paper_map_runs() -> None:
    failed, attempted = doctest.testfile(str(ROOT / "docs" / "paper-map.md"), module_relative=False)
    assert failed == 0 and attempted == 4


ADMIN_CALLS = CLIENTS.split("`AdminApi(http, token=…)` has")[1].split(". ")[0]
TASK_CALLS = CLIENTS.split("| call | answers with | |")[1].split("\n\n")[0]


@pytest.mark.parametrize(
    ("api", "documented"),
    [(AdminApi, re.findall(r"`(\w+)`", ADMIN_CALLS)), (TaskApi, re.findall(r"`(\w+)\(", TASK_CALLS))],
)
def test_every_call_of_the_sdk_is_documented(api: type, documented: list[str]) -> None:
    calls = {name for name, call in vars(api).items() if callable(call) and not name.startswith("_")}
    assert calls == set(documented)


_FOLDERS = "benchmarks|client|docker|docs|examples|experiments|integrations|server|shared|tests"
PATHS = sorted(
    {
        (page.name, path)
        for page in PAGES
        for path in re.findall(rf"`((?:{_FOLDERS})/[\w./-]+|\.env\.example)`", page.read_text())
    }
)
PROSE = "\n".join(re.sub(r"`[^`]*`", "", page.read_text()) for page in PAGES)


@pytest.mark.parametrize(("page", "path"), PATHS, ids=[":".join(found) for found in PATHS])
def test_every_path_that_a_page_names_exists(page: str, path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("word", ["anybody", "everybody", "nobody", "somebody", "whatever", "whoever"])
def test_pages_name_the_component_that_acts(word: str) -> None:
    assert not re.search(rf"\b{word}\b", PROSE, re.IGNORECASE)


COMPOSE_IMPORTS = [
    tuple(found)
    for file in sorted(ROOT.glob("docker-compose*.yml"))
    for found in re.findall(r"from (qidpfl_[\w.]+) import (\w+)", file.read_text())
]


@pytest.mark.parametrize(("module", "name"), COMPOSE_IMPORTS)
def test_what_the_compose_files_import_exists(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("page", "link"), LINKS, ids=[f"{page.name}:{link}" for page, link in LINKS])
def test_every_relative_link_leads_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link).exists()


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as code hosts and the served guides make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


ANCHORS = [
    (page, target, anchor)
    for page in PAGES
    for target, anchor in sorted(set(re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())))
]


@pytest.mark.parametrize(
    ("page", "target", "anchor"), ANCHORS, ids=[f"{page.name}:{target}#{anchor}" for page, target, anchor in ANCHORS]
)
def test_every_link_to_a_section_names_one_that_exists(page: Path, target: str, anchor: str) -> None:
    assert anchor in anchors(page.parent / target if target else page)


def test_the_readme_is_short_and_links_every_page() -> None:
    assert len(README.splitlines()) <= 150
    linked = {(page.parent / link).resolve() for page, link in LINKS if page.name == "README.md"}
    assert linked >= {page for page in PAGES if page.name != "README.md"}
