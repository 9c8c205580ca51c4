"""Runs the commands: `python -m qidpfl_client`."""

from .cli.app import main

if __name__ == "__main__":
    main()
