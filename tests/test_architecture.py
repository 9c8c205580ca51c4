"""Which package may import which: one table, compared with the import statements of every module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {
    f"qidpfl_{name}": ROOT / name / f"qidpfl_{name}" for name in ("shared", "server", "client", "experiments")
} | {"qidpfl": ROOT / "qidpfl" / "qidpfl", "qidpfl_flower": ROOT / "integrations" / "flower" / "qidpfl_flower"}

# For each package: the other packages of this project, and the libraries, that it may import. A distribution's own name
# stands for the modules that lie directly in it. `numpy` and the standard library are allowed everywhere.
RULES: dict[str, set[str]] = {
    "qidpfl_shared": {"opentelemetry", "pydantic"},
    "qidpfl_shared.core": {"scipy"},
    "qidpfl_shared.protocol": {"cryptography", "pydantic", "pydantic_core", "qidpfl_shared.core"},
    "qidpfl_shared.web": set(),
    "qidpfl_shared.workloads": {"PIL", "pyarrow", "sklearn", "torch", "qidpfl_shared", "qidpfl_shared.protocol"},
    # domain <- store, plugins <- service <- audit, ops <- api <- cli
    "qidpfl_server": {"pydantic", "pydantic_settings", "structlog", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_server.store": {
        *("alembic", "obstore", "sqlalchemy", "structlog", "xxhash", "qidpfl_server"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.plugins": {
        *("pydantic", "structlog", "torch", "qidpfl_server"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_server.service": {
        *("anyio", "structlog", "torch", "qidpfl_server", "qidpfl_server.store", "qidpfl_server.plugins"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_server.audit": {
        *("qidpfl_server", "qidpfl_server.store", "qidpfl_server.plugins", "qidpfl_server.service"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.ops": {
        *("pydantic", "safetensors", "structlog"),
        *("qidpfl_server", "qidpfl_server.store", "qidpfl_server.plugins", "qidpfl_server.service"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.tracking": {
        *("mlflow", "structlog", "tensorboardX", "qidpfl_server", "qidpfl_server.store"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_server.api": {
        *("anyio", "fastapi", "markdown_it", "prometheus_client", "pydantic", "starlette", "structlog"),
        *("qidpfl_server", "qidpfl_server.store", "qidpfl_server.plugins", "qidpfl_server.service"),
        "qidpfl_server.ops",
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.web"),
    },
    "qidpfl_server.cli": {
        *("cryptography", "httptools", "matplotlib", "pydantic", "rich", "structlog", "typer", "uvicorn", "uvloop"),
        *("qidpfl_server", "qidpfl_server.store", "qidpfl_server.plugins", "qidpfl_server.service"),
        *("qidpfl_server.audit", "qidpfl_server.ops", "qidpfl_server.tracking", "qidpfl_server.api"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    # sdk, journal, training <- participant <- fleet <- cli; conformance <- cli
    "qidpfl_client": {"scipy", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_client.sdk"},
    "qidpfl_client.sdk": {
        *("httpcore", "httpx", "pydantic", "pydantic_core", "stamina"),
        *("qidpfl_client", "qidpfl_shared", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.journal": {
        *("pydantic", "qidpfl_client", "qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.training": {
        *("torch", "qidpfl_client"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_client.participant": {
        *("torch", "qidpfl_client", "qidpfl_client.sdk", "qidpfl_client.journal", "qidpfl_client.training"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    "qidpfl_client.fleet": {
        *("httpx", "qidpfl_client", "qidpfl_client.sdk", "qidpfl_client.journal", "qidpfl_client.participant"),
        *("qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.conformance": {
        *("httpx", "pydantic", "scipy", "qidpfl_client"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_client.cli": {
        *("rich", "stamina", "torch", "typer", "qidpfl_client", "qidpfl_client.sdk", "qidpfl_client.journal"),
        *("qidpfl_client.training", "qidpfl_client.participant", "qidpfl_client.fleet"),
        "qidpfl_client.conformance",
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    # run -> results <- analysis <- report <- view
    "qidpfl_experiments": {"pydantic", "qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"},
    "qidpfl_experiments.results": {
        *("pydantic", "qidpfl_experiments"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl_experiments.analysis": {"scipy", "qidpfl_experiments", "qidpfl_experiments.results"},
    "qidpfl_experiments.report": {
        *("jinja2", "matplotlib", "qidpfl_shared.core"),
        *("qidpfl_experiments", "qidpfl_experiments.results", "qidpfl_experiments.analysis"),
    },
    "qidpfl_experiments.testbed": {"httpx", "qidpfl_client"},
    "qidpfl_experiments.view": {
        *("qidpfl_experiments", "qidpfl_experiments.results", "qidpfl_experiments.analysis"),
        *("qidpfl_experiments.report", "qidpfl_shared.web"),
    },
    "qidpfl_experiments.run": {
        *("pydantic", "ray", "rich", "stamina", "submitit", "torch", "typer"),
        *("qidpfl_client", "qidpfl_client.sdk", "qidpfl_client.fleet"),
        *("qidpfl_client.journal", "qidpfl_client.training"),
        *("qidpfl_experiments", "qidpfl_experiments.results", "qidpfl_experiments.testbed"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
    # The Python API drives a coordinator over HTTP and starts it as a process: it imports no module of the server.
    "qidpfl": {
        *("IPython", "matplotlib", "pydantic", "rich", "qidpfl_client", "qidpfl_experiments.testbed"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    "qidpfl.demo": {
        *("rich", "typer", "qidpfl", "qidpfl_client", "qidpfl_client.journal", "qidpfl_experiments.testbed"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol"),
    },
    # The bridge to Flower uses the packages of the client, and no module of the server.
    "qidpfl_flower": {
        *("flwr", "pydantic", "stamina", "typer"),
        *("qidpfl_client", "qidpfl_client.cli", "qidpfl_client.journal", "qidpfl_client.participant"),
        *("qidpfl_shared", "qidpfl_shared.core", "qidpfl_shared.protocol", "qidpfl_shared.workloads"),
    },
}
# `__main__` modules join the parts of their distribution and follow no rule.
JOINS = {f"{name}.__main__" for name in DISTRIBUTIONS}
# A pure function uses no clock, file, socket, environment, global randomness, log or thread.
IMPURE = {
    *("asyncio", "datetime", "io", "logging", "os", "pathlib"),
    *("random", "secrets", "socket", "sys", "threading", "time"),
}
SIZE_LIMIT = 400
SMALLEST = 30
SIDE_BY_SIDE = 16


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in DISTRIBUTIONS.items():
        for path in sorted(folder.rglob("*.py")):
            if "migrations" not in path.parts:
                parts = path.relative_to(folder).with_suffix("").parts
                yield ".".join((package, *(part for part in parts if part != "__init__"))), path


MODULES = dict(modules())


def imports_of(name: str, path: Path) -> set[str]:
    """The full names that a module imports, with relative imports resolved."""
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


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def package_of(name: str) -> str:
    """The most special package of the table that a module belongs to."""
    return max((package for package in RULES if within(name, package)), key=len)


def is_allowed(importer: str, imported: str) -> bool:
    root = imported.split(".")[0]
    if root in sys.stdlib_module_names or root == "numpy":
        return True
    package = package_of(importer)
    target = package_of(imported) if root in DISTRIBUTIONS else root
    return target == package or target in RULES[package]


@pytest.mark.parametrize("name", sorted(set(MODULES) - JOINS))
def test_a_module_imports_only_what_its_package_may(name: str) -> None:
    forbidden = [imported for imported in imports_of(name, MODULES[name]) if not is_allowed(name, imported)]
    assert not forbidden, f"{name} imports {forbidden}"


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("qidpfl_server.store.blobs", "qidpfl_server.api.app"),
        ("qidpfl_server.domain", "qidpfl_server.cli.app"),
        ("qidpfl_server.service.rounds.settlement", "qidpfl_server.api.context"),
        ("qidpfl_server.service.rounds.settlement", "fastapi"),
        ("qidpfl_server.service.rounds.settlement", "sqlalchemy"),
        ("qidpfl_server.plugins.rules", "qidpfl_server.service.lifecycle"),
        ("qidpfl_server.ops.backup", "qidpfl_server.cli.serve"),
        ("qidpfl_client.sdk.client", "qidpfl_client.training.trainer"),
        ("qidpfl_client.journal.journal", "qidpfl_client.participant.participant"),
        ("qidpfl_experiments.results.tables", "qidpfl_experiments.run.session"),
        ("qidpfl_server.service.rounds.settlement", "qidpfl_client.api"),
        ("qidpfl_shared.core.money", "qidpfl_shared.protocol.wire"),
    ],
)
def test_the_table_forbids_the_arrows_that_must_not_come_back(importer: str, imported: str) -> None:
    assert not is_allowed(importer, imported)


def test_the_domain_imports_the_clock_only() -> None:
    ours = {one for one in imports_of("qidpfl_server.domain", MODULES["qidpfl_server.domain"])}
    assert all(within(one, "qidpfl_server.clock") for one in ours if within(one, "qidpfl_server"))


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "qidpfl_shared.core")])
def test_the_core_imports_nothing_impure(name: str) -> None:
    assert not {imported.split(".")[0] for imported in imports_of(name, MODULES[name])} & IMPURE


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {
        name: {
            other
            for imported in imports_of(name, path)
            for other in (imported, imported.rpartition(".")[0])
            if other in MODULES and other != name
        }
        for name, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("part", "unwanted"),
    [
        ("qidpfl_shared.core", {"pydantic", "torch", "fastapi", "httpx"}),
        ("qidpfl_shared.protocol", {"torch", "fastapi", "httpx"}),
        ("qidpfl_shared.workloads", {"torch", "torchvision", "sklearn", "PIL", "pyarrow", "fastapi", "httpx"}),
        ("qidpfl_server.ops", {"fastapi", "uvicorn", "torch", "obstore"}),
        ("qidpfl_client.api", {"torch", "scipy.stats", "sklearn", "structlog", "fastapi"}),
        ("qidpfl_client.sdk", {"torch", "scipy.stats", "sklearn", "structlog", "fastapi", "opentelemetry"}),
    ],
)
def test_importing_a_part_does_not_load_what_it_has_no_use_for(part: str, unwanted: set[str]) -> None:
    names = [name for name in MODULES if within(name, part) and name != "qidpfl_shared.workloads.networks"]
    script = f"import sys, importlib\nfor n in {names}: importlib.import_module(n)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not unwanted & set(loaded)


def test_every_rule_names_a_package_that_exists() -> None:
    assert all(package in MODULES for package in RULES)


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES.values()}), ids=lambda path: path.name)
def test_no_package_has_too_many_modules_side_by_side(folder: Path) -> None:
    assert len([path for path in folder.glob("*.py") if not path.name.startswith("__")]) <= SIDE_BY_SIDE


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if path.name != "__init__.py"])
def test_a_module_is_neither_too_long_nor_too_short(name: str) -> None:
    """A module below the lower limit says in its docstring why it is a separate module."""
    text = MODULES[name].read_text()
    assert text.count("\n") <= SIZE_LIMIT
    if text.count("\n") < SMALLEST and name not in JOINS:
        assert "separate module" in " ".join((ast.get_docstring(ast.parse(text)) or "").split())


def test_every_distribution_has_type_information() -> None:
    assert all((folder / "py.typed").exists() for folder in DISTRIBUTIONS.values())


def test_no_public_class_name_occurs_twice() -> None:
    """The Python API may have the short words, such as `Task`: its users see no other package."""
    found: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if within(name, "qidpfl"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    assert not {class_name: places for class_name, places in found.items() if len(places) > 1}
