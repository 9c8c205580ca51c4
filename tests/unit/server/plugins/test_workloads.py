"""Custom workloads: what is imported, what is refused in one line, and version 0 of their tasks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qidpfl_server.errors import CoordinatorError
from qidpfl_server.plugins.workloads import CustomWorkload, find_workload
from qidpfl_shared.protocol.presets import preset

WORKLOAD = """
class Mine:
    labels, convex = 3, False
    def __init__(self, data_dir):
        self.data_dir = data_dir
    def training(self): ...
    def held_out(self): ...
    def network(self): ...
"""


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:Mine"


def test_a_class_in_a_file_is_imported_with_its_data_folder(tmp_path: Path) -> None:
    found: Any = find_workload(write(tmp_path, WORKLOAD), tmp_path / "data")
    assert (found.labels, found.convex) == (3, False)
    assert found.custom.data_dir == tmp_path / "data"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Mine(:", "SyntaxError"),
        ("class Other: ...", "Mine"),
        (WORKLOAD.replace("self.data_dir = data_dir", "1 / 0"), "ZeroDivisionError"),
        (WORKLOAD.replace("def held_out(self): ...", ""), "held_out"),
    ],
)
def test_a_file_without_a_workload_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CoordinatorError) as refusal:
        find_workload(write(tmp_path, text), None)
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(CoordinatorError, match=r"^module 'nowhere' cannot be imported: "):
        find_workload("nowhere:Class", None)


class Parameter:
    """A parameter of a torch network, without torch."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values

    def detach(self) -> "Parameter":
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._values


class Network:
    def __init__(self, **tensors: np.ndarray[Any, Any]) -> None:
        self._tensors = tensors

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, Parameter(values)) for name, values in self._tensors.items())


def custom(folder: Path, network: Any) -> CustomWorkload:
    return CustomWorkload("mine:Mine", find_workload(write(folder, WORKLOAD), None), network)


def test_version_0_of_a_network_is_its_parameters_and_of_a_convex_model_zero(tmp_path: Path) -> None:
    tensors = {"weight": np.arange(640, dtype=np.float32).reshape(10, 64), "bias": np.ones(10, dtype=np.float32)}
    own = custom(tmp_path, Network(**tensors))
    spec = preset("digits")
    assert spec.workload.convex and own.start(spec) is None
    deep = spec.model_copy(update={"workload": spec.workload.model_copy(update={"convex": False})})
    start = own.start(deep)
    assert start is not None and start.tolist() == [*range(640), *[1.0] * 10]


def test_a_network_with_another_layout_than_the_task_is_refused(tmp_path: Path) -> None:
    spec = preset("digits")
    deep = spec.model_copy(update={"workload": spec.workload.model_copy(update={"convex": False})})
    with pytest.raises(CoordinatorError, match="mine:Mine is not the network of this task: "):
        custom(tmp_path, Network(weight=np.zeros((10, 64), dtype=np.float32))).start(deep)
