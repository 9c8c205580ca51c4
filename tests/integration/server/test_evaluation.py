"""Accuracy on held-out records: built-in workloads and a user's own, with and without data."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import structlog
from safetensors.numpy import load_file

from qidpfl_server.plugins.workloads import describe_workload
from qidpfl_server.service.evaluation import Evaluators
from qidpfl_server.service.rounds.aggregation import initial_parameters
from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.layouts import NETWORKS
from qidpfl_shared.protocol.presets import PRESETS, preset
from qidpfl_shared.protocol.task_spec import WorkloadSpec
from qidpfl_shared.protocol.wire import flatten, unflatten
from qidpfl_shared.workloads.builtin import DATA_SETS
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.networks import layout_of
from qidpfl_shared.workloads.workload import UnknownWorkload
from support.commands import server_command
from support.coordinators import ScriptedClient, running

pytestmark = pytest.mark.live

DATA = Path(os.environ["QIDPFL_DATA_DIR"]) if os.environ.get("QIDPFL_DATA_DIR") else None
needs_data = pytest.mark.skipif(DATA is None, reason="QIDPFL_DATA_DIR names no folder of data sets")
SHORT = {"game": {"horizon": 2}, "rounds": {"expected_clients": 3, "declare_s": 60.0, "deliver_s": 60.0}}


def test_both_halves_have_every_label_for_any_order_of_the_records() -> None:
    """Every other point has label 1, so that this constant answer is right for about a half of them."""
    own = describe_workload("support.custom_workload:Alternating", None)
    spec = preset("digits", own.overrides({}))
    parameters = flatten(tensors={"weight": np.zeros((2, 2)), "bias": [0.0, 1.0]}, layout=spec.layout)
    found = Evaluators(custom=[own.name]).of(spec).evaluate(spec, parameters)
    assert found is not None
    assert 0.3 < found.deciding.accuracy < 0.7
    assert 0.3 < found.reported.accuracy < 0.7


def test_the_digits_are_evaluated_without_torch() -> None:
    script = (
        "import sys; from qidpfl_server.cli.app import app; from qidpfl_server.service.evaluation import Evaluators\n"
        "from qidpfl_server.service.rounds.aggregation import initial_parameters\n"
        "from qidpfl_shared.protocol.presets import preset\n"
        "spec = preset('digits'); found = Evaluators().of(spec).evaluate(spec, initial_parameters(spec))\n"
        "print(found is not None, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("dataset", DATA_SETS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_layout_that_a_task_must_have_is_that_of_the_built_in_network(dataset: str, network: str) -> None:
    labels = DATA_SETS[dataset].facts.labels
    try:
        workload = load_workload(WorkloadSpec(dataset=dataset, network=network, labels=labels))
    except UnknownWorkload:
        assert layouts.built_in(dataset=dataset, network=network) is None
    else:
        assert layouts.built_in(dataset=dataset, network=network) == layout_of(workload.network())


def test_a_task_that_cannot_be_evaluated_is_logged_and_does_not_affect_the_others() -> None:
    """The wrong layout is found only when the parameters are loaded into the network."""
    own = describe_workload("support.custom_workload:Plane", None)
    sound = preset("digits", own.overrides({}))
    other = preset("digits", own.overrides({}) | {"layout": {"tensors": [{"name": "w", "shape": []}]}})
    evaluators = Evaluators(custom=[own.name])
    with structlog.testing.capture_logs() as said:
        for _ in range(2):
            assert evaluators.of(other).evaluate(other, initial_parameters(other)) is None
        assert evaluators.of(sound).evaluate(sound, initial_parameters(sound)) is not None
    assert [line["event"] for line in said] == ["unevaluated"]


def test_a_task_whose_workload_cannot_be_loaded_does_not_affect_the_evaluation_of_others() -> None:
    own = describe_workload("support.custom_workload:Plane", None)
    sound = preset("digits", own.overrides({}))
    claiming = preset("digits", own.overrides({"workload": {"convex": True}}))
    evaluators = Evaluators(custom=[own.name])
    assert claiming.workload.convex and not sound.workload.convex
    assert evaluators.of(claiming).evaluate(claiming, initial_parameters(claiming)) is None
    assert evaluators.of(sound).evaluate(sound, initial_parameters(sound)) is not None


@needs_data
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "digits"])
def test_every_preset_is_evaluated_where_its_data_are(name: str) -> None:
    spec = preset(name)
    found = Evaluators(data_dir=DATA).of(spec).evaluate(spec, initial_parameters(spec))
    assert found is not None and found.reported.loss is not None
    # Nothing is learnt yet: all answers are about equally likely.
    assert found.reported.loss == pytest.approx(np.log(spec.workload.labels), rel=0.1)


@needs_data
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_missing_data_are_used_as_soon_as_they_exist(name: str, tmp_path: Path) -> None:
    spec = preset(name)
    evaluator = Evaluators(data_dir=tmp_path).of(spec)
    assert evaluator.evaluate(spec, initial_parameters(spec)) is None
    assert DATA is not None
    for folder in DATA.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    assert evaluator.evaluate(spec, initial_parameters(spec)) is not None


# --- a custom workload -----------------------------------------------------------------------------------------------


def test_the_class_of_a_workload_describes_its_task() -> None:
    own = describe_workload("support.custom_workload:Plane", None)
    spec = preset("digits", own.overrides({"workload": {"partition": None}, "game": {"horizon": 7}}))
    workload = spec.workload
    assert (workload.dataset, workload.labels, workload.convex) == ("support.custom_workload:Plane", 2, False)
    assert (workload.partition, spec.game.horizon) == (None, 7)
    shapes = [(tensor.name, tensor.shape) for tensor in spec.layout.tensors]
    assert shapes == [
        *(("0.weight", (8, 2)), ("0.bias", (8,)), ("1.weight", (8,)), ("1.bias", (8,))),
        *(("3.weight", (2, 8)), ("3.bias", (2,))),
    ]


def test_version_0_is_the_initial_network_and_the_same_every_time() -> None:
    starts = []
    for _ in range(2):
        own = describe_workload("support.custom_workload:Plane", None)
        spec = preset("digits", own.overrides({}))
        start = own.start(spec)
        assert start is not None
        starts.append(start)
    assert (starts[0] == starts[1]).all()
    assert (unflatten(vector=starts[0], layout=spec.layout)["1.weight"] == 1).all()


@pytest.mark.parametrize(("name", "reason"), [("Secretive", "no held-out records"), ("Moody", "not today")])
def test_a_workload_that_fails_is_logged_once_and_does_not_affect_others(name: str, reason: str) -> None:
    own = describe_workload(f"support.custom_workload:{name}", None)
    spec = preset("digits", own.overrides({}))
    evaluator = Evaluators(custom=[own.name]).of(spec)
    with structlog.testing.capture_logs() as said:
        for _ in range(2):
            assert evaluator.evaluate(spec, initial_parameters(spec)) is None
    assert len(said) == 1 and reason in said[0]["reason"]


def test_a_task_of_a_custom_workload_is_created_evaluated_and_exported(tmp_path: Path) -> None:
    where = ["--state-dir", str(tmp_path / "state")]
    command = ["tasks", "create", "mine", "--preset", "digits", "--single-use-codes", "0", *where]
    overrides = ["--overrides", json.dumps(SHORT | {"workload": {"partition": None}})]
    made = server_command(*command, "--workload", "support.custom_workload:Plane", *overrides)
    assert made.returncode == 0, made.stderr
    assert made.stderr == "note: serve --workload support.custom_workload:Plane evaluates its rounds\n"
    task_id, code = made.stdout.split()
    with running(tmp_path / "state", arguments=("--workload", "support.custom_workload:Plane")) as coordinator:
        clients = [
            ScriptedClient(coordinator.url, task_id, code, f"the-key-of-client-{n}", labels=(55, 55)) for n in range(3)
        ]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with coordinator.admin as http:
            results = [http.get(f"/v1/tasks/{task_id}/rounds/{number}").json() for number in (1, 2)]
            (tmp_path / "model.safetensors").write_bytes(http.get(f"/v1/tasks/{task_id}/models/0.safetensors").content)
            measured = http.get("/metrics").text
        assert "qidpfl_settlement_seconds_count 2.0" in measured and "qidpfl_evaluation_seconds_count 2.0" in measured
        assert all(result["timing"]["evaluation_s"] > 0 for result in results)
        assert all(0 <= result["accuracy"] <= 1 and result["loss"] > 0 for result in results)
        assert "0 violated" in coordinator.audit()
    assert (load_file(tmp_path / "model.safetensors")["1.weight"] == 1).all()


def test_a_workload_that_cannot_be_found_ends_serve_and_create_with_one_line(tmp_path: Path) -> None:
    for words in (("serve", "--port", "0"), ("tasks", "create", "x", "--preset", "digits")):
        done = server_command(*words, "--workload", "nowhere:Class", "--state-dir", tmp_path / "s")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("qidpfl-server: module 'nowhere' cannot be imported: ")
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "s").exists()
