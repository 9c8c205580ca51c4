"""The link of the dashboard: with the token on a terminal, without it elsewhere."""

import io
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from qidpfl_server.cli.http.server import _reachable
from qidpfl_server.cli.serve import _show_dashboard


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_sees_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "viewer.token").write_text("the-token\n")
    with capture_logs() as logged:
        _show_dashboard("http://h/dashboard", tmp_path)
    assert logged[0]["token_file"] == str(tmp_path / "viewer.token")
    assert "the-token" not in str(logged) + capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    _show_dashboard("http://h/dashboard", tmp_path)
    assert "http://h/dashboard#token=the-token" in terminal.getvalue()


@pytest.mark.parametrize(("host", "name"), [("0.0.0.0", "localhost"), ("::1", "[::1]"), ("h.example", "h.example")])
def test_the_link_names_a_host_that_can_be_reached(host: str, name: str) -> None:
    assert _reachable(host) == name
