"""pip install, with one readable line if the package index does not answer: python .ci/pip_install.py OPTION...

`make setup` calls it. pip's own messages are left out only if pip could not connect and the index does not answer here.
"""

import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request


def main(arguments: list[str]) -> int:
    """Run pip; its exit code."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    # pip says this at each of its retries.
    lost = done.returncode != 0 and "connection broken by" in done.stderr
    reason = silence(index()) if lost else None
    if reason is None:
        sys.stderr.write(done.stderr)
        return done.returncode
    shown = re.sub(r"//[^/@]*@", "//", index())  # without a password
    print(
        f"setup: the package index {shown} does not answer ({reason}). Check the network and the proxy, or name"
        " another index with PIP_INDEX_URL. Without a network: PIP_NO_INDEX=1 PIP_FIND_LINKS=WHEELS make setup",
        file=sys.stderr,
    )
    return 1


def index() -> str:
    """The address of the index that pip uses."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return os.environ.get("PIP_INDEX_URL") or configured.stdout.strip() or "https://pypi.org/simple"


def silence(address: str) -> str | None:
    """Why an address does not answer; None if it does, with any status or certificate."""
    try:
        urllib.request.urlopen(address.rstrip("/") + "/pip/", timeout=10).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLError) else str(reason)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
