"""The packages that an image installs, read from pyproject.toml and constraints.txt.

    python docker/requirements.py server[postgres,digits]    the third-party packages of a distribution and its extras
    python docker/requirements.py --pins torch numpy         the lines of constraints.txt for these packages

The Dockerfiles write each list to its own file, so that a layer is rebuilt only if its list changes.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
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


def pins(names: list[str]) -> Iterator[str]:
    """The exact versions of these packages."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.partition("==")[0].lower() in names:
            yield line


if __name__ == "__main__":
    found = pins(sys.argv[2:]) if sys.argv[1] == "--pins" else packages(sys.argv[1])
    print(*sorted(set(found)), sep="\n")
