"""Runs the commands: `python -m qidpfl_server`."""

import gc
import os

from qidpfl_shared.early_signals import while_importing

# Before numpy is imported. Its products are small here: a second thread makes none of them faster, and spins on the
# processor while it waits for the next one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# An import creates many objects and frees few. The collector would search all of them again and again.
gc.disable()

with while_importing("qidpfl-server"):
    from .cli.app import app

gc.enable()


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
