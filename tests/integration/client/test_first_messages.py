"""What a newcomer gets wrong first: each is one line that says what to do, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qidpfl_client.cli.app import app
from support.certificates import Authority
from support.coordinators import Coordinator

pytestmark = pytest.mark.live

CODE = "0123456789abcdef01234567.a-secret-of-an-enrolment-code"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


def run(*arguments: str, folder: Path) -> tuple[str, float]:
    """The last line of `run`, and how long it took."""
    begun = time.monotonic()
    given = ["run", "--code", CODE, "--journal", str(folder / "journal.sqlite"), *arguments]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    assert "trying again" not in done.stderr and not (folder / "journal.sqlite").exists()
    return done.stderr.splitlines()[-1], time.monotonic() - begun


def test_https_to_a_plain_port_is_named_without_a_retry(coordinator: Coordinator, tmp_path: Path) -> None:
    url = coordinator.url.replace("http://", "https://")
    line, took = run("--server", url, "--first-contact", "600", folder=tmp_path)
    assert line == (
        f"qidpfl-client: {url}: there is no TLS at this port: the coordinator speaks plain http; use http://, or start"
        " it with TLS"
    )
    assert took < 60


def test_a_certificate_that_does_not_verify_is_not_retried_and_names_the_option(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    made = authority.server("coordinator")
    files = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    with Coordinator(tmp_path / "state", arguments=files) as secure:
        url = secure.url
        line, took = run("--server", url, "--first-contact", "600", folder=tmp_path)
        assert "its certificate does not verify" in line and "--server-ca FILE.pem" in line and took < 60
        # With the CA the coordinator answers, and only the code is wrong.
        line, _ = run("--server", url, "--ca-file", str(authority.file), folder=tmp_path)
        assert "missing, wrong or revoked" in line
        assert "the enrolment code is wrong, or was revoked: ask the operator for another" in line


def test_a_port_with_tls_is_named_to_a_client_that_speaks_http(tmp_path: Path) -> None:
    made = Authority(tmp_path, "ca").server("coordinator")
    files = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    with Coordinator(tmp_path / "state", arguments=files) as secure:
        url = secure.url.replace("https://", "http://")
        said = first_failure("--server", url, folder=tmp_path)
    assert said.endswith("(this port may speak https: use https://)")


def test_a_missing_client_certificate_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    made = authority.server("coordinator")
    files = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
    required = ("--tls-client-ca", str(authority.file), "--tls-client-certs", "required")
    with Coordinator(tmp_path / "state", arguments=(*files, *required)) as secure:
        said = first_failure("--server", secure.url, "--server-ca", str(authority.file), folder=tmp_path)
    assert said.endswith("(it may require a certificate of this client: --client-cert)")


def first_failure(*arguments: str, folder: Path) -> str:
    """The last line of `run` that tries only for a moment."""
    given = ["run", "--code", CODE, "--journal", str(folder / "journal.sqlite"), "--first-contact", "0", *arguments]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1
    return done.stderr.splitlines()[-1]


def test_a_ledger_without_a_journal_says_who_makes_one(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.sqlite"
    done = CliRunner().invoke(app, ["ledger", "--journal", str(missing)])
    assert done.exit_code == 1 and not missing.exists()
    assert done.stderr == (
        f"qidpfl-client: there is no journal {missing}: name it with --journal FILE; `run` and `fleet` create one\n"
    )


def test_a_missing_torch_is_one_line_with_the_name_of_the_extra(coordinator: Coordinator, tmp_path: Path) -> None:
    # A module of this name that cannot be imported stands for an environment without torch.
    (tmp_path / "torch.py").write_text("raise ImportError('no module named torch')\n")
    command = [sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--code", CODE]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("torch is not installed: pip install 'qidpfl-client[train]'")


@pytest.mark.parametrize("program", ["qidpfl_client", "qidpfl_server"])
def test_ctrl_c_during_the_imports_is_one_line(program: str, tmp_path: Path) -> None:
    # A slow numpy: the signal comes in the middle of the imports.
    (tmp_path / "numpy.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", program, "--help"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == f"{program.replace('_', '-')}: stopped\n"


@pytest.mark.parametrize("program", ["qidpfl_client", "qidpfl_server", "qidpfl_experiments"])
def test_every_program_tells_its_version_and_that_of_the_protocol(program: str) -> None:
    done = subprocess.run([sys.executable, "-m", program, "--version"], capture_output=True, text=True, check=True)
    version = (Path(__file__).parents[3] / "VERSION").read_text().strip()
    assert done.stdout.startswith(f"{program.replace('_', '-')} {version}, protocol ")
