"""Write constraints.hashes.txt: the versions of constraints.txt with the hashes of all their files in a package index.

    python .ci/update_hashes.py [INDEX]        `make hashes` calls it; INDEX is https://pypi.org/simple by default

The hashes of all files of a version are written, so that the file is the same for every platform and Python. torch and
torchvision are left out: their index is a choice (CPU, CUDA), and each index has other files. Needs `packaging`.
"""

import html
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent
NOT_HASHED = ("torch", "torchvision")
_HEAD = """\
# The versions of constraints.txt with the SHA-256 of all their files on PyPI. Written by `make hashes`; do not edit.
# Without torch and torchvision, whose index is a choice.
"""


def main(index: str) -> None:
    pins = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    hashed = [pin for pin in pins if pin.partition("==")[0] not in NOT_HASHED]
    with ThreadPoolExecutor(8) as threads:
        blocks = list(threads.map(lambda pin: block(index, pin), hashed))
    (ROOT / "constraints.hashes.txt").write_text(_HEAD + "".join(blocks))
    print(f"constraints.hashes.txt: {len(blocks)} packages, {sum(one.count('--hash') for one in blocks)} files")


def block(index: str, pin: str) -> str:
    """The lines of one package."""
    name, _, version = pin.partition("==")
    with urllib.request.urlopen(f"{index}/{canonicalize_name(name)}/", timeout=60) as page:
        found = sorted(set(hashes(page.read().decode(), Version(version))))
    if not found:
        raise SystemExit(f"{index} has no file of {pin} with a SHA-256")
    return " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in found)]) + "\n"


def hashes(page: str, version: Version) -> list[str]:
    """The hashes of the files of this version on a page of a simple index (PEP 503)."""
    links = (html.unescape(link) for link in re.findall(r'href="([^"]+)"', page))
    named = [found for link in links if (found := re.search(r"([^/#]+)#sha256=([0-9a-f]{64})", link))]
    return [found[2] for found in named if _version(found[1]) == version]


def _version(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


if __name__ == "__main__":
    main((sys.argv[1] if len(sys.argv) > 1 else "https://pypi.org/simple").rstrip("/"))
