"""Puts what the coordinator serves of docs/ and examples/ into sdist and wheel: guides, golden vectors, two clients.

A wheel that is built from an sdist finds them there already.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GUIDES = (
    "contract",
    "protocol",
    "markets",
    "clients",
    "conformance",
    "own-data",
    "privacy",
    "operator-api",
    "glossary",
)

EXAMPLES = ("custom_client.mjs", "custom_client.py")


class GuidesHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the guides, except to an editable installation, which reads them from the repository."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        docs = Path(self.root).parent / "docs"
        if version == "editable" or not docs.is_dir():
            return
        for name in GUIDES:
            build_data["force_include"][str(docs / f"{name}.md")] = f"qidpfl_server/guides/{name}.md"
        for file in [*sorted((docs / "conformance").glob("*.json")), docs / "conformance" / "records.csv"]:
            build_data["force_include"][str(file)] = f"qidpfl_server/guides/conformance/{file.name}"
        for name in EXAMPLES:
            file = docs.parent / "examples" / name
            build_data["force_include"][str(file)] = f"qidpfl_server/guides/examples/{name}"
