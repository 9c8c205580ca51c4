"""The SDK against a live coordinator: a whole task, with repeats, the feed and the admin's calls."""

import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from qidpfl_client.api import AdminApi, TaskApi, connect, split_code
from qidpfl_client.errors import Conflict, Forbidden, NotFound, Refused, RoundClosed, Unauthenticated, Unreachable
from qidpfl_shared.core.planning import Standing
from qidpfl_shared.core.privacy.mechanisms import GradientOnceMechanism
from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.ledger import SpendState
from qidpfl_shared.protocol.messages import Declaration, Decline, Event, Profile, RoundOffer, TaskState
from qidpfl_shared.protocol.operators import CreatedTask
from qidpfl_shared.protocol.wire import digest_of, encode
from support.coordinators import NO_TIMEOUTS, Coordinator, running

pytestmark = pytest.mark.live

PROFILE = Profile(label_counts=(11,) * 10, size=110, privacy_value=1.0, histogram_rho=0.1)
RHO = 0.05
DOCUMENT = Path(__file__).parents[3] / "docs" / "clients.md"


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with running(tmp_path_factory.mktemp("sdk")) as live:
        yield live
        assert "0 violated" in live.audit()


@pytest.fixture(scope="module")
def http(coordinator: Coordinator) -> Iterator[httpx.Client]:
    with connect(coordinator.url) as client:
        yield client


def secret_of(coordinator: Coordinator, role: str) -> str:
    return (coordinator.state_dir / f"{role}.token").read_text().strip()


@pytest.fixture(scope="module")
def admin(coordinator: Coordinator, http: httpx.Client) -> AdminApi:
    return AdminApi(http, token=secret_of(coordinator, "admin"))


def create(admin: AdminApi, name: str, **rounds: Any) -> CreatedTask:
    overrides = {"game": {"horizon": 2}, "rounds": NO_TIMEOUTS | rounds}
    return admin.create_task(name, preset="digits", overrides=overrides, single_use_codes=0)


def enrolled(http: httpx.Client, created: CreatedTask, number: int) -> TaskApi:
    (code,) = created.enrolment_codes
    api = TaskApi(http, task_id=split_code(code)[0])
    answer = api.enrol(code=code, key=f"the-key-of-client-{number}", ordinal=number)
    assert (answer.ordinal, answer.spec_digest) == (number, created.task.spec_digest)
    return api


def offer_after(api: TaskApi, after: tuple[int, int]) -> RoundOffer:
    while (news := api.announcement(after=after)) is None or news.round is None:
        assert news is None or news.task_state is TaskState.ENROLLING
    return news.round


def update_for(api: TaskApi, offer: RoundOffer, number: int) -> bytes:
    """A step from the model that was announced, with noise of the declared size."""
    model = api.model(offer.model_version, digest=offer.model_digest)
    assert model.shape == (offer.dimension,)
    std = GradientOnceMechanism(clip_norm=1.0).noise_std(rho=RHO, size=PROFILE.size)
    rng = np.random.default_rng([offer.round_number, number])
    return encode(std * rng.standard_normal(offer.dimension))


def test_a_whole_task_with_every_call_repeated(admin: AdminApi, http: httpx.Client) -> None:
    created = create(admin, "whole", expected_clients=3)
    task_id, (code,) = created.task.task_id, created.enrolment_codes
    stranger = TaskApi(http, task_id=task_id)
    assert stranger.task(code=code) == created.task
    clients = [enrolled(http, created, number) for number in range(3)]
    # The same key again: the same client with a fresh token, which the SDK goes on with.
    old = clients[0].token
    clients[0].enrol(code=code, key="the-key-of-client-0", ordinal=0)
    assert clients[0].token != old
    with pytest.raises(Unauthenticated):
        TaskApi(http, task_id=task_id, token=old).ledger()
    clients[0].store_profile(PROFILE)
    with pytest.raises(Conflict) as caught:
        clients[0].enrol(code=code, key="the-key-of-client-0")
    assert caught.value.code is ErrorCode.ALREADY_ENROLLED
    for api in clients:
        api.store_profile(PROFILE)

    seen = (0, 0)
    for round_number in (1, 2):
        offers = [offer_after(api, seen) for api in clients]
        seen = (offers[0].round_number, offers[0].attempt)
        assert seen == (round_number, 1) and {offer.standing for offer in offers} == {Standing.INVITED}
        updates = [update_for(api, offer, n) for n, (api, offer) in enumerate(zip(clients, offers, strict=True))]
        receipts = [api.answer(round_number, Declaration(rho=RHO)) for api in clients]
        assert receipts == [api.answer(round_number, Declaration(rho=RHO)) for api in clients]
        sent = [api.upload(round_number, data) for api, data in zip(clients, updates, strict=True)]
        # Also after the round is settled the same bytes get their first receipt, and others are refused.
        assert sent == [api.upload(round_number, data) for api, data in zip(clients, updates, strict=True)]
        assert [receipt.digest for receipt in sent] == [digest_of(data) for data in updates]
        with pytest.raises(Conflict) as caught:
            clients[0].upload(round_number, updates[1])
        assert caught.value.code is ErrorCode.UPDATE_EXISTS

    end = None
    while end is None:
        end = clients[0].announcement(after=seen)
    assert (end.task_state, end.reason) == (TaskState.FINISHED, "horizon_reached")
    check_accounts(admin, task_id, clients)


def check_accounts(admin: AdminApi, task_id: str, clients: list[TaskApi]) -> None:
    """What the clients, the admin and the feed say of a finished task of two rounds is the same."""
    task, rounds = admin.task(task_id), admin.rounds(task_id)
    ledgers = [api.ledger() for api in clients]
    assert sum(ledger.earned_micro for ledger in ledgers) == task.paid_micro > 0
    for ledger in ledgers:
        assert [entry.release for entry in ledger.entries] == ["histogram", "round/1", "round/2"]
        assert {entry.state for entry in ledger.entries} == {SpendState.SPENT}
        assert ledger.spent_rho == pytest.approx(0.1 + 2 * RHO)
    for result in rounds:
        assert result.clients is not None and len(result.clients) == 3
        own = clients[1].round(result.round_number)
        assert own.clients is None and own.own in result.clients
    models = admin.models(task_id)
    assert [info.version for info in models] == [0, 1, 2]
    tensors = load(admin.safetensors(task_id, 2))
    last = np.append(tensors["weight"], tensors["bias"])
    np.testing.assert_array_equal(admin.model(task_id, models[2]), last)
    assert all(api.selection().selected for api in clients)
    assert next(task for task in admin.tasks() if task.task_id == task_id).settled_rounds == 2
    events = list(admin.events(task_id))
    assert [event.round_number for event in events if event.kind == "round.settled"] == [1, 2]
    assert list(admin.events(task_id, after=events[2].id)) == events[3:]


def test_the_feed_is_followed_live_until_the_admin_stops_the_task(
    coordinator: Coordinator, admin: AdminApi, http: httpx.Client
) -> None:
    created = create(admin, "stopped", min_clients=3)
    task_id = created.task.task_id
    viewer = AdminApi(http, token=secret_of(coordinator, "viewer"))
    seen: list[Event] = []
    started = threading.Event()

    def watch() -> None:
        for event in viewer.events(task_id):
            seen.append(event)
            started.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    clients = [enrolled(http, created, number) for number in range(3)]
    assert started.wait(timeout=30)
    for api in clients:
        api.store_profile(PROFILE)
    assert admin.start(task_id).state is TaskState.TRAINING
    assert admin.start(task_id).state is TaskState.TRAINING
    offer = offer_after(clients[0], (0, 0))
    declined = clients[0].answer(offer.round_number, Decline(decline=True, reason="not today"))
    assert declined == clients[0].answer(offer.round_number, Decline(decline=True, reason="not today"))
    clients[1].leave()
    clients[1].leave()
    with pytest.raises(Forbidden):
        viewer.stop(task_id)
    assert admin.stop(task_id).state is TaskState.STOPPED
    assert admin.stop(task_id).state is TaskState.STOPPED
    watcher.join(timeout=30)
    assert not watcher.is_alive()
    assert [event.id for event in seen] == sorted({event.id for event in seen})
    assert seen[-1].kind.startswith("task.")
    with pytest.raises(RoundClosed):
        clients[2].answer(offer.round_number, Declaration(rho=RHO))


def test_what_is_refused_is_a_named_error_with_its_code(admin: AdminApi, http: httpx.Client) -> None:
    created = create(admin, "refused")
    task_id, (code,) = created.task.task_id, created.enrolment_codes
    api = enrolled(http, created, 0)
    with pytest.raises(Unauthenticated):
        TaskApi(http, task_id=task_id).ledger()
    with pytest.raises(Unauthenticated):
        TaskApi(http, task_id=task_id).enrol(code=f"{task_id}.another-secret", key="the-key-of-a-client")
    with pytest.raises(Forbidden):
        TaskApi(http, task_id=task_id, token=code).ledger()
    with pytest.raises(Forbidden):
        next(api.events())
    with pytest.raises(NotFound):
        admin.task("0123456789abcdef")
    with pytest.raises(Refused) as refused:
        api.store_profile(Profile(label_counts=(5, 5), size=10, privacy_value=1.0))
    assert refused.value.code is ErrorCode.HISTOGRAM_MISMATCH
    with pytest.raises(Refused) as refused:
        admin.create_task("impossible", preset="digits", overrides={"game": {"horizon": 0}})
    assert refused.value.code is ErrorCode.INVALID_REQUEST and "horizon" in refused.value.detail
    with pytest.raises(Conflict) as conflict:
        create(admin, "refused")
    assert conflict.value.code is ErrorCode.TASK_EXISTS
    admin.stop(task_id)


def test_a_task_starts_from_the_model_that_the_admin_gives(admin: AdminApi, http: httpx.Client) -> None:
    created = create(admin, "given", expected_clients=3)
    task_id = created.task.task_id
    data = encode(np.linspace(-1, 1, 650))
    assert admin.give_model(task_id, data) == admin.give_model(task_id, data) == admin.models(task_id)[0]
    clients = [enrolled(http, created, number) for number in range(3)]
    for api in clients:
        api.store_profile(PROFILE)
    offer = offer_after(clients[0], (0, 0))
    assert encode(clients[0].model(0, digest=offer.model_digest)) == data
    with pytest.raises(Conflict) as caught:
        admin.give_model(task_id, encode(np.zeros(650)))
    assert caught.value.code is ErrorCode.MODEL_FROZEN
    admin.stop(task_id)


def test_certificates_are_verified_and_those_of_the_environment_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    openssl = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    command = [*openssl.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    arguments = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with running(tmp_path / "state", arguments=arguments) as live:
        assert live.url.startswith("https://")
        token = secret_of(live, "admin")
        with connect(live.url) as http, pytest.raises(Unreachable, match=r"(?i)certificate"):
            AdminApi(http, token=token).tasks()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with connect(live.url) as http:
            assert AdminApi(http, token=token).tasks() == []


def test_the_ten_lines_of_the_document_work_unchanged(
    coordinator: Coordinator, admin: AdminApi, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) <= 10
    created = create(admin, "documented")
    names: dict[str, Any] = {"url": coordinator.url, "code": created.enrolment_codes[0], "key": "the-key-of-the-reader"}
    exec(block, names)
    names["http"].close()
    said = capsys.readouterr().out
    assert "gradient_once" in said and "enrolling" in said and "histogram" in said
    admin.stop(created.task.task_id)


def test_the_admin_lists_all_clients_and_removes_one(admin: AdminApi, http: httpx.Client) -> None:
    created = create(admin, "put-out")
    task_id = created.task.task_id
    clients = [enrolled(http, created, number) for number in range(2)]
    clients[0].store_profile(PROFILE)
    known = admin.clients(task_id)
    assert [client.ordinal for client in known] == [0, 1]
    admin.put_out(task_id, known[1].client_id)
    admin.put_out(task_id, known[1].client_id)
    assert clients[0].ledger().client_id == known[0].client_id
    with pytest.raises(Unauthenticated):
        clients[1].ledger()
    admin.stop(task_id)


def test_single_use_codes_enrol_one_client_each(admin: AdminApi, http: httpx.Client) -> None:
    created = admin.create_task("single", preset="digits", single_use_codes=2)
    first, second = created.enrolment_codes
    TaskApi(http, task_id=created.task.task_id).enrol(code=first)
    with pytest.raises(Conflict) as caught:
        TaskApi(http, task_id=created.task.task_id).enrol(code=first)
    assert caught.value.code is ErrorCode.CODE_USED
    TaskApi(http, task_id=created.task.task_id).enrol(code=second)
    admin.stop(created.task.task_id)


def test_an_unreachable_coordinator_is_reported_in_one_line() -> None:
    with connect("http://127.0.0.1:9") as http, pytest.raises(Unreachable) as caught:
        AdminApi(http, token="an-unknown-token").create_task("x", preset="digits")
    assert str(caught.value).startswith("http://127.0.0.1:9 does not answer: ")
    assert "\n" not in str(caught.value) and "token" not in str(caught.value)
