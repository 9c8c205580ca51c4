"""Which arrays of a Flower app are the parameters of a task."""

from typing import Any

import numpy as np
import pytest

from qidpfl_flower.parameters import check_trained_only, flat_parameters, layout_of_arrays
from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec
from qidpfl_shared.workloads.workload import LayoutMismatch

WEIGHT, BIAS = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([7.0, 8.0, 9.0], dtype=np.float32)
LAYOUT = layout_of_arrays({"weight": WEIGHT, "bias": BIAS})
EXPECTED = [0, 1, 2, 3, 4, 5, 7, 8, 9]


@pytest.mark.parametrize(
    "returned",
    [{"weight": WEIGHT, "bias": BIAS}, {"bias": BIAS, "weight": WEIGHT}, [WEIGHT, BIAS], (WEIGHT, BIAS)],
    ids=["named", "in another order", "list", "tuple"],
)
def test_parameters_come_in_the_order_of_the_layout(returned: Any) -> None:
    assert flat_parameters(returned, LAYOUT).tolist() == EXPECTED


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_any_floats_are_parameters(kind: type) -> None:
    assert flat_parameters([WEIGHT.astype(kind), BIAS.astype(kind)], LAYOUT).tolist() == EXPECTED


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"weight": WEIGHT}, "missing bias, unknown none"),
        ({"weight": WEIGHT, "bias": BIAS, "extra": BIAS}, "missing none, unknown extra"),
        ({"weight": WEIGHT.T, "bias": BIAS}, r"weight with shape \(2, 3\), the task has \(3, 2\)"),
        ([WEIGHT], "returns 1 arrays, the task has 2 tensors"),
        ([WEIGHT, BIAS, np.array(4)], "3 arrays, the task has 2 tensors .* GroupNorm"),
        ({"weight": WEIGHT, "bias": BIAS.astype(int)}, "bias is int64: only floating-point .* GroupNorm"),
        ([WEIGHT, BIAS > 7], "bias is bool"),
        ({"weight": WEIGHT, "bias": BIAS, "bn.running_var": BIAS}, "bn.running_var is a statistic of batch norm"),
        ({"num_batches_tracked": np.array(3)}, "num_batches_tracked is a statistic of batch norm"),
    ],
)
def test_other_arrays_are_refused_with_the_remedy(returned: Any, said: str) -> None:
    with pytest.raises(LayoutMismatch, match=said):
        flat_parameters(returned, LAYOUT)


@pytest.mark.parametrize("name", ["bn1.running_mean", "running_var", "features.0.num_batches_tracked"])
def test_a_task_or_an_initial_model_with_statistics_is_refused(name: str) -> None:
    with pytest.raises(LayoutMismatch, match="with_group_norm converts"):
        layout_of_arrays({"weight": WEIGHT, name: BIAS})
    layout = TensorLayout(tensors=(TensorSpec(name="weight", shape=(3, 2)), TensorSpec(name=name, shape=(3,))))
    with pytest.raises(LayoutMismatch, match=name):
        check_trained_only(layout)
    check_trained_only(LAYOUT)
