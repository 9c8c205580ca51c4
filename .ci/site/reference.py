"""The reference of the site: commands from typer, the HTTP API from the application, and the Python API."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from qidpfl.__main__ import app as demo_app
from qidpfl_client.cli.app import app as client_app
from qidpfl_experiments.__main__ import app as experiments_app
from qidpfl_server.cli.app import app as server_app
from support.openapi_document import document

PROGRAMS = {
    "qidpfl-server": server_app,
    "qidpfl-client": client_app,
    "qidpfl-experiments": experiments_app,
    "qidpfl": demo_app,
}
PYTHON = {
    "qidpfl": "Tasks in notebooks and scripts: see [the Python API](../python.md).",
    "qidpfl_client.api": "The SDK for clients and operators: see [writing a client](../clients.md).",
    "qidpfl_client.errors": "What a call of the SDK raises.",
    "qidpfl_shared.core.custom_rules": "The questions of [your own rules](../own-rules.md).",
    "qidpfl_shared.workloads.workload": "[A workload of your own](../workloads.md#a-workload-of-your-own).",
    "qidpfl_shared.workloads.records": "Records of a workload.",
    "qidpfl_shared.workloads.group_norm": "A network without batch normalisation.",
}


def pages() -> dict[str, str]:
    """Every page of the reference by its path, and the OpenAPI document."""
    commands = {f"reference/{name}.md": command_page(name, app) for name, app in PROGRAMS.items()}
    api = {"reference/http.md": http_page(document()), "reference/openapi.json": json.dumps(document(), indent=1)}
    return commands | api | {"reference/python.md": python_page()}


def command_page(name: str, app: typer.Typer) -> str:
    """Every command of a program with its arguments and options."""
    group = typer.main.get_command(app)
    context = group.make_context(name, ["--help"], resilient_parsing=True)
    return get_docs_for_click(obj=group, ctx=context, name=name)


def python_page() -> str:
    """The public modules; mkdocstrings reads their docstrings."""
    parts = [f"## `{module}`\n\n{text}\n\n::: {module}\n" for module, text in PYTHON.items()]
    return "# Python API\n\n" + "\n".join(parts)


def http_page(api: dict[str, Any]) -> str:
    """Every operation with its parameters and answers, and every message with its fields."""
    # The description goes on with the whole contract, which is a page of its own.
    about = api["info"]["description"].partition("\n# ")[0]
    lines = [
        f"# HTTP API\n\n{about}\n",
        "[The protocol](../protocol.md) explains when each call is used. A running coordinator serves this document at "
        "`/docs` and `/openapi.json`; here it is as a file: [openapi.json](openapi.json).\n",
    ]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            lines += operation_part(f"{method.upper()} {path}", operation)
    lines.append("## Messages\n")
    for name, schema in sorted(api["components"]["schemas"].items()):
        lines += message_part(name, schema)
    return "\n".join(lines)


def operation_part(name: str, operation: dict[str, Any]) -> Iterator[str]:
    """An operation: what it does, what it takes, what it answers."""
    yield f"## `{name}`\n\n{operation.get('description') or operation.get('summary', '')}\n"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for one in parameters:
            yield f"| `{one['name']}` | {one['in']} | {type_of(one['schema'])} | {cell(one.get('description', ''))} |"
        yield ""
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body: {type_of(body.get('schema', {}))} (`{media}`)\n"
    yield "| status | answer | |\n|---|---|---|"
    for status, answer in operation["responses"].items():
        kinds = [f"{type_of(body.get('schema', {}))} (`{media}`)" for media, body in answer.get("content", {}).items()]
        yield f"| {status} | {', '.join(kinds)} | {cell(answer.get('description', ''))} |"
    yield ""


def message_part(name: str, schema: dict[str, Any]) -> Iterator[str]:
    """A message with its fields, or an enumeration with its values."""
    yield f"### {name}\n\n{schema.get('description', '')}\n"
    if "properties" not in schema:
        yield f"{type_of(schema)}\n"
        return
    yield "| field | type | |\n|---|---|---|"
    for field, kind in schema["properties"].items():
        required = "" if field in schema.get("required", ()) else " (optional)"
        yield f"| `{field}`{required} | {type_of(kind)} | {cell(kind.get('description', ''))} |"
    yield ""


def type_of(schema: dict[str, Any]) -> str:
    """A schema in words, with links to other messages."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(map(type_of, schema[several]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def cell(text: str) -> str:
    """A text as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
