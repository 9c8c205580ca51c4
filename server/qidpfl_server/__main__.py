"""Runs the commands: `python -m qidpfl_server`."""

import gc

# An import creates many objects and frees few. The collector would search all of them again and again.
gc.disable()

from .cli.app import app  # noqa: E402

gc.enable()


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
