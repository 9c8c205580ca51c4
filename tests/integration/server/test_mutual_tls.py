"""Mutual TLS on real sockets: whose certificate is accepted, enrolment with it, and tokens that are bound to it."""

import signal
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from qidpfl_client.api import TaskApi, TlsFiles, connect
from qidpfl_client.cli.app import app as client_app
from qidpfl_client.errors import Conflict, Misconfigured, Unauthenticated, Unreachable
from qidpfl_client.journal.journal import Journal
from qidpfl_client.participant.runner import run_until_finished
from qidpfl_client.sdk.retries import Retries
from support.certificates import Authority, Files
from support.commands import server_command
from support.coordinators import NO_TIMEOUTS, Coordinator
from support.synthetic_clients import enrolment

pytestmark = pytest.mark.live

ONCE = Retries(attempts=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "ca")


class TlsCoordinator(Coordinator):
    """A coordinator whose certificate the authority of the test has signed."""

    authority: Authority

    @property
    def admin(self) -> httpx.Client:
        return self.http(None, (self.state_dir / "admin.token").read_text().strip())

    def http(self, files: Files | None, token: str = "") -> httpx.Client:
        context = ssl.create_default_context(cafile=self.authority.file)
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, verify=context, timeout=60)


def serving(state_dir: Path, authority: Authority, *arguments: str) -> TlsCoordinator:
    files = authority.server("coordinator")
    coordinator = TlsCoordinator(
        state_dir,
        arguments=(
            *("--tls-cert", str(files.certificate), "--tls-key", str(files.key)),
            *("--tls-client-ca", str(authority.file), *arguments),
        ),
    )
    coordinator.authority = authority
    return coordinator


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[TlsCoordinator]:
    with serving(tmp_path_factory.mktemp("state"), authority, "--certificate-tasks", "open, also-open") as live:
        assert isinstance(live, TlsCoordinator)
        yield live


@pytest.fixture(scope="module")
def task_id(coordinator: TlsCoordinator) -> str:
    return coordinator.create_task("open")[0]


@pytest.fixture(scope="module")
def closed(coordinator: TlsCoordinator) -> tuple[str, str]:
    """A task that takes enrolment codes only."""
    return coordinator.create_task("closed")


def tls(authority: Authority, files: Files | None) -> TlsFiles:
    if files is None:
        return TlsFiles(server_ca=authority.file)
    return TlsFiles(files.certificate, files.key, authority.file)


@contextmanager
def enrolled(coordinator: TlsCoordinator, files: Files, task_id: str) -> Iterator[TaskApi]:
    """A client that has enrolled with its certificate."""
    with connect(coordinator.url, tls=tls(coordinator.authority, files)) as http:
        api = TaskApi(http, task_id=task_id, retries=ONCE)
        api.enrol_with_certificate()
        api.selection()
        yield api


# --- who is let in ---------------------------------------------------------------------------------------------------


def test_the_right_certificate_enrols_reads_the_task_and_takes_part(
    coordinator: TlsCoordinator, authority: Authority, task_id: str
) -> None:
    files = authority.client("right")
    with connect(coordinator.url, tls=tls(authority, files)) as http:
        api = TaskApi(http, task_id=task_id, retries=ONCE)
        assert api.task().task_id == task_id
        answer = api.enrol_with_certificate()
        assert api.selection().selected is None
        # One place for one certificate.
        with pytest.raises(Conflict):
            TaskApi(http, task_id=task_id, retries=ONCE).enrol_with_certificate()
    with coordinator.admin as admin:
        clients = admin.get(f"/v1/tasks/{task_id}/clients").raise_for_status().json()
    assert answer.client_id in {client["client_id"] for client in clients}
    (line,) = [one for one in coordinator.log if one.get("client_id") == answer.client_id]
    assert (line["event"], line["certificate"]) == ("client_enrolled", files.fingerprint)


def test_without_a_certificate_there_is_no_enrolment_without_a_code(
    coordinator: TlsCoordinator, authority: Authority, task_id: str
) -> None:
    with connect(coordinator.url, tls=tls(authority, None)) as http:
        api = TaskApi(http, task_id=task_id, retries=ONCE)
        with pytest.raises(Unauthenticated):
            api.task()
        with pytest.raises(Unauthenticated):
            api.enrol_with_certificate()


@pytest.mark.parametrize("kind", ["other CA", "expired", "of a server", "not signed"])
def test_a_certificate_that_is_not_valid_gets_no_connection(
    kind: str, coordinator: TlsCoordinator, authority: Authority, stranger: Authority, task_id: str
) -> None:
    """Not even /healthz answers: the handshake fails."""
    files = {
        "other CA": stranger.client("other-ca"),
        "expired": authority.client("expired", expired=True),
        "of a server": authority.server("a-server"),
        "not signed": Files(stranger.file, stranger.client("unused").key),
    }[kind]
    if kind == "not signed":
        # The key does not belong to the certificate: the client itself refuses the pair.
        with pytest.raises(Misconfigured, match="not a certificate and its key"):
            connect(coordinator.url, tls=tls(authority, files))
        return
    with connect(coordinator.url, tls=tls(authority, files)) as http:
        with pytest.raises(httpx.TransportError):
            http.get("/healthz")
        with pytest.raises(Unreachable):
            TaskApi(http, task_id=task_id, retries=ONCE).enrol_with_certificate()
    assert any(one["event"] == "certificate_refused" for one in coordinator.log)


def test_a_task_that_the_operator_has_not_named_takes_no_certificate(
    coordinator: TlsCoordinator, authority: Authority, closed: tuple[str, str]
) -> None:
    """An unknown task gets the same answer, so that a certificate does not tell which tasks there are."""
    with coordinator.http(authority.client("curious")) as http:
        answers = [
            (answer.status_code, answer.content)
            for one in (closed[0], "0" * 24)
            for answer in (http.get(f"/v1/tasks/{one}"), http.post(f"/v1/tasks/{one}/clients/certificate", json={}))
        ]
        assert len(set(answers)) == 1 and answers[0][0] == 401
        # An enrolment code works, and its token needs no certificate.
        body = {"enrolment_code": closed[1], "enrolment_key": "the-key-of-client-0"}
        token = http.post(f"/v1/tasks/{closed[0]}/clients", json=body).raise_for_status().json()["token"]
    with coordinator.http(None, token) as http:
        assert http.get(f"/v1/tasks/{closed[0]}/clients/me/selection").status_code == 200


# --- tokens that are bound to a certificate --------------------------------------------------------------------------


def test_a_stolen_token_is_worth_nothing_without_its_certificate(
    coordinator: TlsCoordinator, authority: Authority, task_id: str
) -> None:
    """The faults: the binding is not checked, or only for callers that are not in the cache, or not for uploads."""
    with (
        enrolled(coordinator, authority.client("owner"), task_id) as owner,
        enrolled(coordinator, authority.client("thief"), task_id) as thief,
    ):
        _rob(coordinator, authority, task_id, owner, thief)


def _rob(coordinator: TlsCoordinator, authority: Authority, task_id: str, owner: TaskApi, thief: TaskApi) -> None:
    path_of_task = f"/v1/tasks/{task_id}"
    assert owner.token is not None
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/clients/me/selection", {}),
        ("GET", "/rounds/current", {}),
        ("PUT", "/rounds/1/budget", {"json": {"rho": 0.1}}),
        ("PUT", "/rounds/1/update", {"content": b"0000"}),
        ("POST", "/clients/me/token", {}),
        ("GET", "", {}),
    ]
    for files in (authority.client("thief-2"), None):
        with coordinator.http(files, owner.token) as http:
            found = {http.request(verb, f"{path_of_task}{path}", **more).status_code for verb, path, more in requests}
        assert found == {401}
    # The owner goes on, and so does the other client.
    owner.selection()
    thief.selection()
    # A stolen next token does not replace the owner's token either.
    new = owner.next_token()
    with coordinator.http(authority.client("thief-3"), new) as http:
        assert http.get(f"/v1/tasks/{task_id}/clients/me/selection").status_code == 401
    owner.selection()
    owner.token = new
    owner.selection()


def test_a_client_with_a_certificate_takes_part_in_a_whole_task(
    coordinator: TlsCoordinator, authority: Authority, tmp_path: Path
) -> None:
    rounds = NO_TIMEOUTS | {"expected_clients": 3, "min_clients": 3, "min_updates": 3}
    task_id, _ = coordinator.create_task("also-open", game={"horizon": 2}, rounds=rounds)
    ends: list[str] = []

    def play(number: int) -> None:
        files = authority.client(f"member-{number}")
        with (
            connect(coordinator.url, tls=tls(authority, files)) as http,
            Journal(tmp_path / f"{number}.sqlite") as journal,
        ):
            joining = replace(enrolment(http, f"{task_id}.unused", journal), codes=())
            end = run_until_finished(joining, patience_s=60, first_contact_s=10, slots=False)
            ends.append(str(end.task_state))

    threads = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["finished"] * 3
    assert coordinator.audit()


# --- required certificates, a new certificate, and mistakes ----------------------------------------------------------


def test_with_required_certificates_every_connection_needs_one(tmp_path: Path, authority: Authority) -> None:
    with serving(tmp_path, authority, "--tls-client-certs", "required") as coordinator:
        assert isinstance(coordinator, TlsCoordinator)
        with coordinator.http(None) as http, pytest.raises(httpx.TransportError):
            http.get("/healthz")
        with coordinator.http(authority.client("someone")) as http:
            answer = http.get("/healthz")
        assert answer.status_code == 200
        assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_sighup_takes_new_tls_files(tmp_path: Path, authority: Authority, stranger: Authority) -> None:
    """A new certificate of the server, and another CA of the clients; connections that are open stay."""
    ca, mine, other = tmp_path / "clients.pem", authority.client("mine"), stranger.client("other")
    ca.write_bytes(authority.file.read_bytes())
    with serving(tmp_path / "state", authority, "--tls-client-ca", str(ca)) as coordinator:
        assert isinstance(coordinator, TlsCoordinator) and coordinator.process is not None
        with coordinator.http(mine) as open_before:
            assert open_before.get("/healthz").status_code == 200
            before = _served(coordinator)
            assert authority.server("coordinator").certificate.name == "coordinator.pem"
            ca.write_bytes(stranger.file.read_bytes())
            coordinator.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 60
            while _served(coordinator) == before:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert open_before.get("/healthz").status_code == 200
        with coordinator.http(other) as http:
            assert http.get("/healthz").status_code == 200
        with coordinator.http(mine) as http, pytest.raises(httpx.TransportError):
            http.get("/healthz")


def _served(coordinator: Coordinator) -> str:
    address = urlsplit(coordinator.url)
    assert address.hostname is not None and address.port is not None
    return ssl.get_server_certificate((address.hostname, address.port), timeout=60)


def test_mistakes_with_certificates_are_one_line(tmp_path: Path, authority: Authority) -> None:
    files = authority.server("mistakes")
    https = ("--tls-cert", files.certificate, "--tls-key", files.key)
    cases: list[tuple[tuple[object, ...], str]] = [
        (("--tls-client-ca", authority.file), "needs tls_cert and tls_key"),
        ((*https, "--certificate-tasks", "*"), "needs tls_client_ca"),
        ((*https, "--tls-client-ca", files.key), "has no CA certificate in PEM"),
        ((*https, "--tls-client-ca", tmp_path / "missing.pem"), "is not a file"),
    ]
    for arguments, says in cases:
        done = server_command("serve", "--state-dir", tmp_path / "state", *map(str, arguments))
        assert done.returncode == 1 and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_mistakes_of_a_client_with_certificates_are_one_line(tmp_path: Path, authority: Authority) -> None:
    files = authority.client("client")
    server = ("run", "--server", "https://127.0.0.1:1", "--first-contact", "0.1")
    journal = ("--journal", tmp_path / "journal.sqlite")
    cases: list[tuple[tuple[object, ...], str]] = [
        ((*server, "--task", "1234"), "--task needs --client-cert"),
        ((*server, "--task", "1234", "--code", "a.b", "--client-cert", files.certificate), "but not both"),
        ((*server, "--code", "a.b", "--client-key", files.key), "a key needs its certificate"),
        ((*server, "--task", "1234", "--client-cert", files.certificate), "not a certificate and its key"),
        ((*server, "--code", "a.b", "--server-ca", files.key), "has no CA certificate"),
        (
            (*server[:2], "http://127.0.0.1:1", "--code", "a.b", "--server-ca", authority.file),
            "need an address with https",
        ),
    ]
    for arguments, says in cases:
        result = CliRunner().invoke(client_app, list(map(str, (*arguments, *journal))))
        assert result.exit_code == 1 and says in result.stderr, (arguments, result.stderr)
