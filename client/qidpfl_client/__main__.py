"""Runs the commands. This module exists for `python -m qidpfl_client` and the console script."""

from .cli.app import main

if __name__ == "__main__":
    main()
