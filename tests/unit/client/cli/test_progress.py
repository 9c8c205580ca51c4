"""What the client shows: one printable line, whatever the coordinator has sent."""

import io

import pytest
from rich.console import Console

from qidpfl_client.cli import options
from qidpfl_client.cli.progress import ProgressDisplay
from qidpfl_client.errors import UntrustedCoordinator

# An escape sequence, a C1 control, a bidirectional override, a line separator and a line end.
HOSTILE = "gone\x1b[2J\x1b]0;title\x07 \x9b31m \u202egnp.exe \u2028next\nline"


def test_only_printable_characters_of_a_line_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay() as progress:
        progress.say(f"the task is failed: {HOSTILE}")
    shown = capsys.readouterr().err
    assert shown.endswith("\n") and shown[:-1].isprintable()
    assert "the task is failed: gone [2J" in shown


def test_a_terminal_shows_markup_as_it_is() -> None:
    progress = ProgressDisplay()
    out = io.StringIO()
    progress._console = Console(file=out, force_terminal=True, highlight=False, markup=False, emoji=False, width=300)
    with progress:
        progress.say(f"[/red] [link=file:///etc]:smile: {HOSTILE}")
    assert "[/red] [link=file:///etc]:smile: gone [2J" in out.getvalue()
    assert "\x1b]0;" not in out.getvalue() and "\x9b" not in out.getvalue() and "\u202e" not in out.getvalue()


def test_the_line_of_an_error_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    @options.guarded
    def fail() -> None:
        raise UntrustedCoordinator(HOSTILE)

    with pytest.raises(SystemExit):
        fail()
    shown = capsys.readouterr().err
    assert shown[:-1].isprintable() and shown.startswith("qidpfl-client: gone [2J")
