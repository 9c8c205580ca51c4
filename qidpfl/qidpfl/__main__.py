"""The command `qidpfl`: the demo. The other commands are `qidpfl-server`, `qidpfl-client` and `qidpfl-experiments`."""

import sys

import stamina.instrumentation
import typer

from qidpfl_shared.command_line import Stopped, stopped_by_signals

from .demo.command import demo_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Federated learning that pays for privacy. For Python: from qidpfl import Task, Testbed.",
)
app.command("demo")(demo_command)


@app.callback()
def _group() -> None:
    """Keeps `demo` a command of its own while there is only one."""


def main() -> None:
    """Run the command line."""
    # Retries are expected here and need no log line: a killed process is reported once.
    stamina.instrumentation.set_on_retry_hooks([])
    try:
        with stopped_by_signals():
            app()
    except Stopped:
        sys.exit("qidpfl: stopped")


if __name__ == "__main__":
    main()
