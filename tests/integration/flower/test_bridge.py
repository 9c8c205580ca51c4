"""Flower clients in tasks of a live coordinator: the unchanged quick start, the sign of an update, refused apps."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import read_ledger
from qidpfl_shared.protocol.ledger import SpendState
from support.coordinators import Coordinator
from support.flower_environment import FLOWER, environment

pytestmark = [pytest.mark.live, pytest.mark.long]

QUICKSTART = FLOWER / "examples" / "quickstart"
LAYERS = {"hidden.weight": [16, 64], "hidden.bias": [16], "output.weight": [10, 16], "output.bias": [10]}
# An app with one parameter vector, whose training adds the same to every parameter.
SMALL = {"weight": [8]}
CLIENTS = 3
MECHANISM: dict[str, Any] = {"name": "update_clip", "clip_norm": 50.0, "learning_rate": 0.1, "batch_size": 16}
NOISY_EPOCHS = MECHANISM | {"name": "noisy_epochs"}

APPS = """
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

def labels():
    return [0, 1] * 10

def reply(message, arrays, examples=20, **more):
    metrics = MetricRecord({"num-examples": examples, "secret-accuracy": 0.5})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics, **more}), reply_to=message)

steps = ClientApp()

@steps.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    values = message.content["arrays"]["weight"].numpy()
    return reply(message, ArrayRecord({"weight": _array(values + 1 + partition)}))

def _array(values):
    from flwr.app import Array
    return Array(np.asarray(values, dtype=np.float32))

class Steps(NumPyClient):
    def fit(self, parameters, config):
        return [parameters[0] + np.float32(1 + 2)], 20, {"secret-accuracy": 0.5}

batch_norm = ClientApp()

@batch_norm.train()
def train(message, context):
    from torch import nn
    return reply(message, ArrayRecord(nn.BatchNorm1d(8).state_dict()))

strict = ClientApp()

@strict.train()
def train(message, context):
    from torch import nn
    nn.BatchNorm1d(8).load_state_dict(message.content["arrays"].to_torch_state_dict())

counters = ClientApp()

@counters.train()
def train(message, context):
    from flwr.app import Array
    return reply(message, ArrayRecord({"weight": Array(np.arange(8))}))

fewer = ClientApp()

@fewer.train()
def train(message, context):
    return reply(message, message.content["arrays"], examples=16)

fails = ClientApp()

@fails.train()
def train(message, context):
    return reply(message, message.content["arrays"], examples=len(context.node_config["missing"]))

not_an_app = 7

private = ClientApp()

@private.train()
def train(message, context):
    values = message.content["arrays"]["weight"].numpy()
    rho = message.content["config"].get("qidpfl-rho")
    noise = 0.0 if rho is None else np.random.default_rng().normal(0, 1 / np.sqrt(rho), values.shape)
    return reply(message, ArrayRecord({"weight": _array(values + noise)}))
"""


def overrides(layers: dict[str, list[int]], mechanism: dict[str, Any], **more: Any) -> dict[str, Any]:
    tensors = [{"name": name, "shape": shape} for name, shape in layers.items()]
    labels = 10 if layers is LAYERS else 2
    changes: dict[str, Any] = {
        "workload": {"dataset": "flower", "network": "flower", "labels": labels},
        "layout": {"tensors": tensors},
        "privacy": {"mechanism": mechanism},
        "aggregation": {"learning_rate": 1.0, "momentum": 0.0},
        "rounds": {"expected_clients": CLIENTS, "min_clients": CLIENTS, "min_updates": CLIENTS},
        "game": {"horizon": 2},
    }
    for part, values in more.items():
        changes[part] = changes.get(part, {}) | values if isinstance(values, dict) else values
    return changes


class FlowerClient:
    """A run of `qidpfl-flower run` in its own home."""

    def __init__(self, flower: Path, url: str, code: str, home: Path, *options: str) -> None:
        home.mkdir(exist_ok=True)
        (home / "code").write_text(code)
        self.journal = home / "journal.sqlite"
        self.output = home / "output.txt"
        command = [str(flower.parent / "qidpfl-flower"), "run", "--server", url, "--code-file", str(home / "code")]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [*command, "--journal", str(self.journal), "--first-contact", "60", *options],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=home,
                env=environment(home),
            )

    def wait(self) -> str:
        """What it printed until it ended well."""
        status = self.end()
        assert status == 0, self.output.read_text()
        return self.output.read_text()

    def end(self) -> int:
        try:
            return self.process.wait(timeout=400)
        finally:
            self.process.kill()

    def spent(self) -> list[tuple[str, str]]:
        """The releases of its journal with their mechanisms, as they were labelled."""
        with Journal(self.journal, read_only=True) as journal:
            return [(one.release, one.mechanism) for one in journal.entries() if one.state is SpendState.SPENT]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apps")
    (folder / "apps.py").write_text(APPS)
    return folder


def model(coordinator: Coordinator, task_id: str, version: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    with coordinator.admin as http:
        data = http.get(f"/v1/tasks/{task_id}/models/{version}").raise_for_status().content
    return np.frombuffer(data, "<f4")


def test_the_quick_start_takes_part_unchanged_and_is_paid(
    coordinator: Coordinator, flower: Path, tmp_path: Path
) -> None:
    """Two nodes by the folder of the app, and one with the `NumPyClient`."""
    mechanism = MECHANISM | {"clip_norm": 1.0}
    task_id, code = coordinator.create_task("quickstart", "own", **overrides(LAYERS, mechanism))
    clients = []
    for node in range(CLIENTS):
        numpy_client = ("--app", "quickstart.numpy_client:app", "--folder", str(QUICKSTART))
        app = numpy_client if node == 2 else ("--app", str(QUICKSTART))
        place = ("--node-config", f"partition-id={node} num-partitions={CLIENTS}", "--labels", "labels:labels")
        more = ("--train-config", "lr=0.05", "--public-data", "--no-slots")
        clients.append(FlowerClient(flower, coordinator.url, code, tmp_path / str(node), *app, *place, *more))
    for client in clients:
        said = client.wait()
        assert "takes part with 479 records" in said and "the task is finished: horizon_reached" in said
        assert "every record: 0.038-zCDP" in said
        assert client.spent() == [
            ("histogram", "gaussian histogram"),
            ("round/1", "update_clip"),
            ("round/2", "update_clip"),
        ]
    earned = 0
    for client in clients:
        with Journal(client.journal, read_only=True) as journal:
            earned += read_ledger(journal).earned_micro
    with coordinator.admin as http:
        rounds = [http.get(f"/v1/tasks/{task_id}/rounds/{number}").json() for number in (1, 2)]
    assert earned == sum(round_["reward_micro"] - round_["kept_micro"] for round_ in rounds) > 0
    assert not np.array_equal(model(coordinator, task_id, 0), model(coordinator, task_id, 2))
    assert re.search(r"\b0 violated", coordinator.audit()), coordinator.audit()


def test_the_next_model_is_the_mean_of_the_returned_ones(
    coordinator: Coordinator, flower: Path, apps: Path, tmp_path: Path
) -> None:
    """Without noise the sign and the scale show: the mean of models that are 1, 2 and 3 above the sent one."""
    free = {"privacy": {"noise": False}, "game": {"policy": "none"}, "defence": None}
    changes = overrides(SMALL, MECHANISM, **free)
    task_id, code = coordinator.create_task("mean", "own", **changes)
    clients = [
        FlowerClient(
            flower,
            coordinator.url,
            code,
            tmp_path / str(node),
            *("--app", "apps:Steps" if node == 2 else "apps:steps", "--folder", str(apps)),
            *("--labels", "apps:labels", "--node-config", f"partition-id={node}"),
            *("--accept-unproven", "--no-slots", "--public-data"),
        )
        for node in range(CLIENTS)
    ]
    for client in clients:
        client.wait()
        assert client.spent()[1:] == [
            ("round/1", "update_clip, noise off, unprotected"),
            ("round/2", "update_clip, noise off, unprotected"),
        ]
    models = [model(coordinator, task_id, version) for version in (0, 1, 2)]
    np.testing.assert_allclose(models[1] - models[0], 2.0, atol=1e-5)
    np.testing.assert_allclose(models[2] - models[1], 2.0, atol=1e-5)


REFUSED = {
    "batch norm": (("--app", "apps:batch_norm"), r"running_mean is a statistic of batch normalisation.*GroupNorm"),
    "a strict batch norm": (("--app", "apps:strict"), r"the app failed in .*running_mean.*use GroupNorm"),
    "integers": (("--app", "apps:counters"), r"weight is int64: only floating-point parameters"),
    "other labels": (("--app", "apps:fewer"), r"trains on 16 records, and the labels are those of 20"),
    "an app that fails": (("--app", "apps:fails"), r"the app failed in .*apps.py:\d+: KeyError: 'missing'"),
    "no app": (("--app", "apps:not_an_app"), r"a int is no client of Flower"),
    "claimed noise": (("--app", "apps:private", "--privacy-inside"), r"only claimed.*--accept-unproven"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_app_that_does_not_fit_is_one_line_and_leaves_nothing_behind(
    what: str, coordinator: Coordinator, flower: Path, apps: Path, tmp_path: Path
) -> None:
    options, said = REFUSED[what]
    task_id, code = coordinator.create_task(what.replace(" ", "-"), "own", **overrides(SMALL, MECHANISM))
    where = ("--folder", str(apps), "--labels", "apps:labels")
    client = FlowerClient(flower, coordinator.url, code, tmp_path / "client", *options, *where)
    assert client.end() == 1
    lines = [line for line in client.output.read_text().splitlines() if line.startswith("qidpfl-flower: ")]
    assert len(lines) == 1 and re.search(said, lines[0]), client.output.read_text()
    assert "Traceback" not in client.output.read_text()
    with coordinator.admin as http:
        assert http.get(f"/v1/tasks/{task_id}/clients").raise_for_status().json() == []


def test_noise_of_the_app_is_labelled_as_claimed(
    coordinator: Coordinator, flower: Path, apps: Path, tmp_path: Path
) -> None:
    """Also in a task whose mechanism an app can only claim. The journal then states no guarantee."""
    changes = overrides(SMALL, NOISY_EPOCHS, privacy={"audit": "flag"}, game={"horizon": 1})
    _, code = coordinator.create_task("claimed", "own", **changes)
    options = ("--app", "apps:private", "--folder", str(apps), "--labels", "apps:labels", "--no-slots")
    accepted = ("--privacy-inside", "--accept-unproven", "--public-data")
    clients = [
        FlowerClient(flower, coordinator.url, code, tmp_path / str(node), *options, *accepted)
        for node in range(CLIENTS)
    ]
    for client in clients:
        assert "no finite guarantee" in client.wait() or "unprotected" in client.output.read_text()
        assert client.spent()[1:] == [("round/1", "noisy_epochs, claimed by the owner's program: no privacy guarantee")]


def test_the_environment_does_not_see_our_own(flower: Path, tmp_path: Path) -> None:
    """Else these tests would not show that the bridge runs with Flower's pins."""
    script = "import rich, flwr, qidpfl_flower, importlib.metadata as m; print(m.version('flwr'), m.version('rich'))"
    done = subprocess.run([str(flower), "-c", script], capture_output=True, text=True, env=environment(tmp_path))
    flwr_version, rich_version = done.stdout.split()
    pins = (FLOWER / "constraints.txt").read_text().splitlines()
    assert {f"flwr=={flwr_version}", f"rich=={rich_version}"} <= set(pins), done.stderr
    assert "PYTHONPATH" not in environment(tmp_path) and os.environ.get("HOME") != str(tmp_path)
