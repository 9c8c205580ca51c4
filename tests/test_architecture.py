"""Who may import whom: read from the syntax trees, compared with one table."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {f"qidpfl_{name}": ROOT / name / f"qidpfl_{name}" for name in ("shared", "server", "client", "experiments")}

# For each package or module: the libraries, and the parts of this project, that it may import besides itself.
# The longest matching name counts.
ALLOWED: dict[str, set[str]] = {
    "qidpfl_shared": set(),
    "qidpfl_shared.command_line": {"pydantic"},
    "qidpfl_shared.core": {"numpy", "scipy"},
    "qidpfl_shared.protocol": {"numpy", "pydantic", "pydantic_core", "qidpfl_shared.core"},
    "qidpfl_shared.workloads": {"numpy", "sklearn", "torch", "qidpfl_shared.plugin_loader", "qidpfl_shared.protocol"},
    "qidpfl_server": {
        *("numpy", "anyio", "structlog"),
        *("qidpfl_shared.core", "qidpfl_shared.failpoints", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.settings": {"pydantic", "pydantic_settings"},
    "qidpfl_server.store": {"sqlalchemy", "alembic", "qidpfl_server", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_server.service.evaluation": {
        *("numpy", "structlog", "torch"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_server.api": {
        *("anyio", "fastapi", "numpy", "prometheus_client", "pydantic", "safetensors", "starlette", "structlog"),
        *("qidpfl_server", "qidpfl_shared.core", "qidpfl_shared.failpoints", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.ops.model_files": {"safetensors", "qidpfl_server", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_server.plugins.rules": {
        *("pydantic", "structlog", "qidpfl_server"),
        *("qidpfl_shared.core", "qidpfl_shared.plugin_loader", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.plugins.workloads": {
        *("torch", "qidpfl_server"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_server.cli.progress": {"rich", "qidpfl_server", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_server.cli.tasks": {
        *("pydantic", "rich", "typer"),
        *("qidpfl_server", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.cli.http_protocol": {"uvicorn"},
    "qidpfl_server.cli.options": {"typer", "qidpfl_server", "qidpfl_shared.command_line"},
    "qidpfl_server.cli.serve": {"structlog", "uvicorn", "qidpfl_server", "qidpfl_shared.protocol"},
    "qidpfl_server.__main__": {"rich", "typer", "qidpfl_server", "qidpfl_shared.protocol"},
    "qidpfl_client": {"qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_client.sdk.admin": {"httpx", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.api": {"httpx", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.fleet.behaviours": {
        *(
            "qidpfl_client.errors",
            "qidpfl_client.participant.data_source",
            "qidpfl_client.noise",
            "qidpfl_client.owner",
        ),
        *("numpy", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.participant.conduct": set(),
    "qidpfl_client.sdk.credentials": {"pydantic", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.participant.bidding": {"qidpfl_client.owner", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_client.participant.runner": {
        *(
            "qidpfl_client.api",
            "qidpfl_client.participant.conduct",
            "qidpfl_client.errors",
            "qidpfl_client.participant.session",
        ),
        *("qidpfl_client.participant.participant",),
        *("qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.sdk._sse": {"httpx", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.fleet.fleet": {
        *(
            "qidpfl_client.api",
            "qidpfl_client.participant.conduct",
            "qidpfl_client.participant.runner",
            "qidpfl_client.errors",
        ),
        *("qidpfl_client.participant.session", "qidpfl_client.participant.participant"),
        *("qidpfl_shared.protocol",),
    },
    "qidpfl_client.fleet.plan": {"httpx", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.sdk._base": {"httpx", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.participant.session": {
        *(
            "qidpfl_client.api",
            "qidpfl_client.errors",
            "qidpfl_client.journal.journal",
            "qidpfl_client.participant.data_source",
        ),
        *(
            "qidpfl_client.sdk.model_cache",
            "qidpfl_client.noise",
            "qidpfl_client.owner",
            "qidpfl_client.participant.profile",
            "qidpfl_client.journal.releases",
        ),
        *("qidpfl_client.participant.verification",),
        *("qidpfl_shared.core", "qidpfl_shared.failpoints", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.journal.journal": {
        *("qidpfl_client.errors", "qidpfl_client.journal.sqlite_file", "qidpfl_client.participant.verification"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.journal.sqlite_file": {"qidpfl_client.errors"},
    "qidpfl_client.participant.data_source": {"numpy", "qidpfl_client.noise", "qidpfl_shared.protocol"},
    "qidpfl_client.journal.ledger": {"qidpfl_client.journal.journal", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_client.participant.local_data": {
        *("qidpfl_client.noise", "qidpfl_client.training"),
        *("numpy", "torch", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_client.sdk.model_cache": {"qidpfl_client.api", "qidpfl_shared.protocol"},
    "qidpfl_client.noise": {"numpy", "scipy"},
    "qidpfl_client.cli.options": {
        *("qidpfl_client.errors", "qidpfl_client.noise"),
        *("typer", "qidpfl_shared.command_line", "qidpfl_shared.core", "qidpfl_shared.workloads"),
    },
    "qidpfl_client.owner": {"qidpfl_shared.core"},
    "qidpfl_client.participant.participant": {
        *(
            "qidpfl_client.participant.conduct",
            "qidpfl_client.participant.bidding",
            "qidpfl_client.errors",
            "qidpfl_client.participant.session",
        ),
        *("qidpfl_client.journal.journal", "qidpfl_client.journal.releases", "qidpfl_client.participant.verification"),
        *("qidpfl_shared.core", "qidpfl_shared.failpoints", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.participant.profile": {
        *(
            "qidpfl_client.errors",
            "qidpfl_client.participant.data_source",
            "qidpfl_client.noise",
            "qidpfl_client.owner",
        ),
        *("qidpfl_client.journal.releases",),
        *("qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.cli.progress": {"rich"},
    "qidpfl_client.journal.releases": {"qidpfl_client.journal.journal", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_client.sdk.retries": {"httpx", "stamina", "qidpfl_client"},
    "qidpfl_client.training": {
        *("numpy", "torch", "qidpfl_client"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_client.sdk.transport": {"httpx", "pydantic", "pydantic_core", "qidpfl_client", "qidpfl_shared.protocol"},
    "qidpfl_client.participant.verification": {"qidpfl_client.errors", "qidpfl_shared.protocol"},
    "qidpfl_client.__main__": {
        *("rich", "stamina", "torch", "typer"),
        *("qidpfl_client", "qidpfl_shared.command_line", "qidpfl_shared.core"),
    },
    "qidpfl_experiments": {"httpx", "pydantic", "rich", "stamina", "typer", "qidpfl_client", "qidpfl_shared"},
    # From tables to statistics, verdicts, figures and texts: nothing here knows how the tables came about.
    "qidpfl_experiments.methods": set(),
    "qidpfl_experiments.results.damaged_results": {
        "pydantic",
        "qidpfl_shared.command_line",
        "qidpfl_shared.plugin_loader",
    },
    "qidpfl_experiments.results.tables": {"qidpfl_experiments.results.damaged_results"},
    "qidpfl_experiments.results.guarantees": {"qidpfl_experiments.methods", "qidpfl_experiments.results.tables"},
    "qidpfl_experiments.analysis.reward_ranges": {"qidpfl_experiments.results.tables"},
    "qidpfl_experiments.analysis.statistics": {"scipy", "qidpfl_experiments.results.tables"},
    "qidpfl_experiments.analysis.conditions": {"qidpfl_experiments.methods", "qidpfl_experiments.results.tables"},
    "qidpfl_experiments.analysis.verdicts": {"qidpfl_experiments.analysis.statistics"},
    "qidpfl_experiments.analysis.claims": {"qidpfl_experiments.methods", "qidpfl_experiments.analysis.verdicts"},
    "qidpfl_experiments.analysis.evaluate": {
        *("qidpfl_experiments.analysis.claims", "qidpfl_experiments.methods", "qidpfl_experiments.analysis.conditions"),
        *(
            "qidpfl_experiments.analysis.reward_ranges",
            "qidpfl_experiments.analysis.statistics",
            "qidpfl_experiments.results.tables",
        ),
        "qidpfl_experiments.analysis.verdicts",
    },
    "qidpfl_experiments.report.formatting": {
        *(
            "qidpfl_experiments.analysis.claims",
            "qidpfl_experiments.analysis.evaluate",
            "qidpfl_experiments.analysis.conditions",
        ),
        *("qidpfl_experiments.analysis.statistics", "qidpfl_experiments.analysis.verdicts"),
    },
    "qidpfl_experiments.report.figures.style": {
        *("matplotlib", "numpy"),
        *(
            "qidpfl_experiments.methods",
            "qidpfl_experiments.analysis.conditions",
            "qidpfl_experiments.analysis.statistics",
        ),
    },
    **{
        f"qidpfl_experiments.{name}_figures": {
            *("matplotlib", "numpy", "qidpfl_shared.core.forecast", "qidpfl_experiments.report.formatting"),
            *(
                "qidpfl_experiments.report.figures.style",
                "qidpfl_experiments.methods",
                "qidpfl_experiments.analysis.conditions",
            ),
            *(
                "qidpfl_experiments.analysis.statistics",
                "qidpfl_experiments.analysis.summary",
                "qidpfl_experiments.results.tables",
            ),
            *("qidpfl_experiments.results.guarantees", "qidpfl_experiments.analysis.reward_ranges"),
        }
        for name in ("paper", "client", "our")
    },
    "qidpfl_experiments.report.figures": {
        *(f"qidpfl_experiments.{name}_figures" for name in ("paper", "client", "our")),
        *(
            "qidpfl_experiments.report.figures.style",
            "qidpfl_experiments.analysis.conditions",
            "qidpfl_experiments.results.tables",
        ),
    },
    "qidpfl_experiments.analysis.summary": {
        *(
            "qidpfl_experiments.results.guarantees",
            "qidpfl_experiments.methods",
            "qidpfl_experiments.analysis.conditions",
        ),
        *("qidpfl_experiments.analysis.statistics", "qidpfl_experiments.results.tables"),
    },
    "qidpfl_experiments.report.caveats": {
        *(
            "qidpfl_experiments.results.guarantees",
            "qidpfl_experiments.analysis.conditions",
            "qidpfl_experiments.results.tables",
        ),
    },
    "qidpfl_experiments.report.report": {"jinja2", "qidpfl_experiments"},
}
# What a pure function has no use for: clocks, files, sockets, the environment, global randomness, logs, threads.
IMPURE = {
    "asyncio",
    "datetime",
    "io",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "sys",
    "threading",
    "time",
}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


def imports_of(name: str, path: Path) -> set[str]:
    """The full names that a module imports, relative ones resolved."""
    found: set[str] = set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def rule_for(name: str) -> str:
    return max((part for part in ALLOWED if within(name, part)), key=len)


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda item: item if isinstance(item, str) else "")
def test_a_module_imports_only_what_its_part_may(name: str, path: Path) -> None:
    part = rule_for(name)
    for imported in imports_of(name, path):
        root = imported.split(".")[0]
        if root in sys.stdlib_module_names:
            continue
        assert any(within(imported, allowed) for allowed in {part, *ALLOWED[part]}), f"{name} imports {imported}"


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name, path in modules() if within(name, "qidpfl_shared.core")],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_the_core_imports_nothing_impure(name: str, path: Path) -> None:
    assert not {imported.split(".")[0] for imported in imports_of(name, path)} & IMPURE


def test_modules_do_not_import_each_other_in_circles() -> None:
    known = dict(modules())
    graph = {
        name: {
            other
            for imported in imports_of(name, path)
            for other in (imported, imported.rpartition(".")[0])
            if other in known and other != name
        }
        for name, path in known.items()
    }
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("part", "unwanted"),
    [
        ("qidpfl_shared.core", {"pydantic", "torch", "fastapi", "httpx"}),
        ("qidpfl_shared.protocol", {"torch", "fastapi", "httpx"}),
        ("qidpfl_shared.workloads", {"torch", "torchvision", "sklearn", "fastapi", "httpx"}),
        ("qidpfl_client.api", {"torch", "scipy.stats", "sklearn", "structlog", "fastapi"}),
    ],
)
def test_importing_a_part_does_not_load_what_it_has_no_use_for(part: str, unwanted: set[str]) -> None:
    names = [name for name, _ in modules() if within(name, part) and name != "qidpfl_shared.workloads.networks"]
    script = f"import sys, importlib\nfor n in {names}: importlib.import_module(n)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not unwanted & set(loaded)


def test_the_table_covers_every_part_and_names_no_other() -> None:
    names = [name for name, _ in modules()]
    assert all(any(within(name, part) for name in names) for part in ALLOWED)
