"""Own models: only the class that the owner names, the same layout as the task's, and no layer that mixes records."""

from pathlib import Path

import pytest
import torch
from torch import nn

from qidpfl_shared.protocol import layouts
from qidpfl_shared.protocol.own_tasks import own_task
from qidpfl_shared.workloads.group_norm import with_group_norm
from qidpfl_shared.workloads.networks import build_network, check_records_stay_apart, layout_of
from qidpfl_shared.workloads.own_data.reading import OwnFiles
from qidpfl_shared.workloads.own_data.workload import check_own_model, own_data, own_model
from qidpfl_shared.workloads.workload import LayoutMismatch, UnknownWorkload, WorkloadError

MODELS = """
from torch import nn

class Small(nn.Linear):
    def __init__(self, record_shape, labels):
        super().__init__(record_shape[0], labels)

def fixed():
    return nn.Linear(3, 2)

def mixing():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

def failing():
    raise RuntimeError("no weights")

def number():
    return 3
"""
STATED = {
    "workload": {"dataset": "mine"},
    "data": {
        "columns": [{"name": name, "low": 0, "high": 1} for name in "abc"],
        "label": {"names": ["no", "yes"]},
    },
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def test_a_class_gets_the_shape_and_the_labels_if_it_asks_for_them(models: Path) -> None:
    for name in ("Small", "fixed"):
        network = own_model(f"{models}:{name}", labels=2, record_shape=(3,))
        assert layout_of(network) == layouts.linear(inputs=3, labels=2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixing", "BatchNorm1d.*GroupNorm.*with_group_norm"),
        ("failing", "creating the model failed: RuntimeError: no weights"),
        ("number", "makes a int, not a torch module"),
        ("nothing", "has no class 'nothing'"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_line(models: Path, name: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        own_model(f"{models}:{name}", labels=2, record_shape=(3,))


def test_a_model_with_another_layout_is_refused_with_both_digests(models: Path) -> None:
    spec = own_task(STATED, model=("models:Small", layouts.linear(inputs=3, labels=2)))
    check_own_model(nn.Linear(3, 2), spec, "models:Small")
    other = nn.Linear(4, 2)
    with pytest.raises(LayoutMismatch) as refused:
        check_own_model(other, spec, "models:Small")
    assert layout_of(other).digest[:12] in str(refused.value) and spec.layout.digest[:12] in str(refused.value)


def test_a_model_is_never_imported_because_a_task_names_it(models: Path) -> None:
    own = own_task(STATED, model=("os:abort", layouts.linear(inputs=3, labels=2)))
    with pytest.raises(UnknownWorkload, match=r"not imported.*--model path/to/os.py:abort"):
        own_data(own, files=OwnFiles(path=models), model=None)
    with pytest.raises(UnknownWorkload, match="leave --model out"):
        own_data(own_task(STATED), files=OwnFiles(path=models), model=f"{models}:Small")


@pytest.mark.parametrize(("network", "hidden"), [("linear", ()), ("mlp", (5,)), ("mlp", (7, 3)), ("mlp", ())])
def test_a_named_network_has_the_layout_of_the_protocol(network: str, hidden: tuple[int, ...]) -> None:
    built = build_network(network, labels=3, record_shape=(4,), hidden=hidden)
    assert layout_of(built) == layouts.of_records(network=network, hidden=hidden, record_shape=(4,), labels=3)
    assert built(torch.zeros(2, 4)).shape == (2, 3)


def test_batch_normalisation_is_converted_everywhere() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(8, 6), nn.BatchNorm1d(6)),
    )
    examples = torch.randn(4, 1, 3, 3)
    with pytest.raises(WorkloadError, match="mixes records"):
        check_records_stay_apart(network)
    converted = with_group_norm(network)
    check_records_stay_apart(converted, examples)
    # Not zeros, as one channel in a group of its own would be.
    assert converted(examples).abs().sum() > 0
