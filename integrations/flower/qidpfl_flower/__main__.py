"""Runs the commands. This module exists for `python -m qidpfl_flower` and the console script."""

from qidpfl_shared.early_signals import while_importing

with while_importing("qidpfl-flower"):
    from .cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
