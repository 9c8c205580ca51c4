"""The packages that an image installs, read from pyproject.toml and constraints.txt.

    python docker/requirements.py server[postgres,digits]    the third-party packages of a distribution and its extras
    python docker/requirements.py --layer torch              the exact versions in one layer of the images

The Dockerfiles write each list to its own file, so that a layer is rebuilt only if its list changes.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Layers with exact versions. Both images share the first; the second changes only with torch and what torch needs.
LAYERS = {
    "shared": "numpy scipy pydantic pydantic_core annotated-types typing_extensions typing-inspection",
    "torch": "torch torchvision pillow filelock fsspec jinja2 markupsafe mpmath networkx sympy",
}
_OWN = re.compile(r"(?:qidpfl-)?(shared|server|client)(?:\[([\w,-]*)\])?")


def packages(distribution: str) -> Iterator[str]:
    """The third-party requirements of one of our distributions; our own packages are replaced by their requirements."""
    own = _OWN.fullmatch(distribution)
    if own is None:
        yield distribution
        return
    project = tomllib.loads((ROOT / own[1] / "pyproject.toml").read_text())["project"]
    needed = list(project["dependencies"])
    for extra in filter(None, (own[2] or "").split(",")):
        if extra not in project["optional-dependencies"]:
            raise SystemExit(
                f"{own[1]} has no extra {extra!r}; choose from {', '.join(project['optional-dependencies'])}"
            )
        needed += project["optional-dependencies"][extra]
    for requirement in needed:
        yield from packages(requirement)


def pins(layer: str) -> Iterator[str]:
    """The lines of constraints.txt for the packages of a layer."""
    names = LAYERS[layer].split()
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.partition("==")[0].lower() in names:
            yield line


if __name__ == "__main__":
    found = pins(sys.argv[2]) if sys.argv[1] == "--layer" else packages(sys.argv[1])
    print(*sorted(set(found)), sep="\n")
