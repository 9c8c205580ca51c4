"""The packages that an image installs, read from pyproject.toml, constraints.txt and constraints.hashes.txt.

    python docker/requirements.py server[postgres,digits]    the third-party packages of a distribution and its extras
    python docker/requirements.py --layer shared             exact versions with hashes, of one layer of the images
    python docker/requirements.py --torch                    the exact versions of torch, without hashes

The Dockerfiles write each list to its own file, so that a layer is rebuilt only if its list changes.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Complete lists: no package of a layer needs one that is neither here nor in an earlier layer, except for torch itself.
# Both images share the first; the second changes only with what torch needs.
LAYERS = {
    "shared": "numpy scipy pydantic pydantic_core annotated-types typing_extensions typing-inspection",
    "torch": "pillow filelock fsspec jinja2 markupsafe mpmath networkx sympy",
    "pip": "pip",
    "build": "hatchling packaging pathspec pluggy tomlkit trove-classifiers",
}
# Without hashes, because their index is a choice, and each index has other files.
TORCH = ("torch", "torchvision")
_OWN = re.compile(r"(?:qidpfl-)?(shared|server|client|experiments|qidpfl)(?:\[([\w,-]*)\])?")


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


def hashed(layer: str) -> Iterator[str]:
    """The blocks of constraints.hashes.txt for the packages of a layer."""
    names = LAYERS[layer].split()
    for block in re.findall(r"^\S+==(?:.*\\\n)*.*$", (ROOT / "constraints.hashes.txt").read_text(), re.MULTILINE):
        if block.partition("==")[0].lower() in names:
            yield block


def torch_pins() -> Iterator[str]:
    """The lines of constraints.txt for torch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return (line for line in lines if line.partition("==")[0] in TORCH)


if __name__ == "__main__":
    if sys.argv[1] == "--layer":
        found = hashed(sys.argv[2])
    else:
        found = torch_pins() if sys.argv[1] == "--torch" else packages(sys.argv[1])
    print(*sorted(set(found)), sep="\n")
