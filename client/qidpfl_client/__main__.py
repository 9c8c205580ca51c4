"""Runs the commands. This module exists for `python -m qidpfl_client` and the console script."""

from qidpfl_shared.early_signals import while_importing

with while_importing("qidpfl-client"):
    from .cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
