"""Runs the commands: `python -m qidpfl_server`."""

import gc

from qidpfl_shared.early_signals import while_importing

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
