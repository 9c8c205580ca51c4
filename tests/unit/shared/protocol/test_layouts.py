"""Layouts of tensors: flat vectors and back."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.fields import MAX_DIMENSION
from qidpfl_shared.protocol.wire import TensorLayout, TensorSpec, WireError, flatten, unflatten
from support.protocol.refusals import code_of

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
# The layout is not in alphabetical order, and its shapes tell row-major from column-major.
LAYOUT = TensorLayout(
    tensors=(
        TensorSpec(name="weight", shape=(2, 3)),
        TensorSpec(name="bias", shape=(2,)),
        TensorSpec(name="alpha", shape=()),
    )
)
TENSORS: dict[str, npt.ArrayLike] = {"alpha": 8.0, "bias": [6.0, 7.0], "weight": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]}


@st.composite
def layouts(draw: st.DrawFn) -> TensorLayout:
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=4))
    return TensorLayout(tensors=tuple(TensorSpec(name=f"t{k}", shape=shape) for k, shape in enumerate(shapes)))


def layout_refusals(tensors: object) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        TensorLayout.model_validate({"tensors": tensors})
    return [error["type"] for error in caught.value.errors()]


def test_a_layout_counts_all_its_elements() -> None:
    assert (LAYOUT.dimension, LAYOUT.byte_length) == (9, 36)


def test_tensors_stand_in_the_order_of_the_layout_and_in_row_major_order() -> None:
    assert flatten(tensors=TENSORS, layout=LAYOUT).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_a_transposed_view_is_flattened_by_its_own_rows() -> None:
    transposed = np.array([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], dtype=np.float32).T
    assert flatten(tensors=TENSORS | {"weight": transposed}, layout=LAYOUT)[:6].tolist() == [0, 1, 2, 3, 4, 5]


@given(layout=layouts(), data=st.data())
def test_flattening_undoes_unflattening(layout: TensorLayout, data: st.DataObject) -> None:
    vector = data.draw(hnp.arrays(np.float32, layout.dimension, elements=FINITE))
    named = unflatten(vector=vector, layout=layout)
    assert flatten(tensors=named, layout=layout).tobytes() == vector.tobytes()


@given(layout=layouts())
def test_unflattened_tensors_have_the_names_and_shapes_of_the_layout(layout: TensorLayout) -> None:
    named = unflatten(vector=np.zeros(layout.dimension, dtype=np.float32), layout=layout)
    assert [(name, tensor.shape) for name, tensor in named.items()] == [(t.name, t.shape) for t in layout.tensors]


def test_unflattened_tensors_are_views() -> None:
    vector = np.zeros(LAYOUT.dimension, dtype=np.float32)
    assert all(np.shares_memory(tensor, vector) for tensor in unflatten(vector=vector, layout=LAYOUT).values())


def test_the_flat_vector_is_a_copy() -> None:
    weight = np.zeros((2, 3), dtype=np.float32)
    assert not np.shares_memory(flatten(tensors=TENSORS | {"weight": weight}, layout=LAYOUT), weight)


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param({"weight": np.zeros((2, 3)), "bias": np.zeros(2)}, id="missing tensor"),
        pytest.param(TENSORS | {"gamma": 0.0}, id="unknown tensor"),
        pytest.param(TENSORS | {"weight": np.zeros((3, 2))}, id="transposed"),
        pytest.param(TENSORS | {"weight": np.zeros(6)}, id="flat"),
        pytest.param(TENSORS | {"bias": 1.0}, id="not broadcast"),
        pytest.param(TENSORS | {"alpha": [1.0]}, id="one element for a scalar"),
    ],
)
def test_tensors_that_differ_from_the_layout_are_refused(tensors: dict[str, npt.ArrayLike]) -> None:
    assert code_of(lambda: flatten(tensors=tensors, layout=LAYOUT)) is ErrorCode.WRONG_LENGTH


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3.5e38, -1e300])
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_float32_cannot_hold_are_refused(name: str, value: float) -> None:
    filled = np.full(np.shape(TENSORS[name]), value)
    assert code_of(lambda: flatten(tensors=TENSORS | {name: filled}, layout=LAYOUT)) is ErrorCode.NOT_FINITE


def test_the_refusal_names_the_first_element_of_the_flat_vector_that_is_not_finite() -> None:
    with pytest.raises(WireError, match="element 7 "):
        flatten(tensors=TENSORS | {"bias": [0.0, 1e39], "alpha": math.nan}, layout=LAYOUT)


@pytest.mark.parametrize("value", [-3.4028234e38, 3.4028234e38])
def test_tensors_of_the_largest_values_are_flattened(value: float) -> None:
    assert flatten(tensors=TENSORS | {"alpha": value}, layout=LAYOUT)[-1] == np.float32(value)


@pytest.mark.parametrize("shape", [(8,), (10,), (9, 1), ()])
def test_a_vector_of_another_shape_is_not_unflattened(shape: tuple[int, ...]) -> None:
    vector = np.zeros(shape, dtype=np.float32)
    assert code_of(lambda: unflatten(vector=vector, layout=LAYOUT)) is ErrorCode.WRONG_LENGTH


def test_two_tensors_of_one_name_are_inconsistent() -> None:
    assert layout_refusals([{"name": "a", "shape": [1]}, {"name": "a", "shape": [2]}]) == ["inconsistent_spec"]


def test_the_largest_layout_is_admissible() -> None:
    layout = TensorLayout.model_validate({"tensors": [{"name": "a", "shape": [MAX_DIMENSION]}]})
    assert layout.byte_length == 2**30


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param([[MAX_DIMENSION], []], id="one parameter too many"),
        pytest.param([[MAX_DIMENSION] * 8], id="beyond 64 bits"),
    ],
)
def test_a_layout_beyond_the_largest_dimension_is_inconsistent(shapes: list[list[int]]) -> None:
    tensors = [{"name": f"t{k}", "shape": shape} for k, shape in enumerate(shapes)]
    assert layout_refusals(tensors) == ["inconsistent_spec"]


@pytest.mark.parametrize(
    ("tensor", "code"),
    [
        ({"name": "a", "shape": [0]}, "greater_than_equal"),
        ({"name": "a", "shape": [-1, -1]}, "greater_than_equal"),
        ({"name": "a", "shape": [10**30]}, "less_than_equal"),
        ({"name": "a", "shape": [2.0]}, "int_type"),
        ({"name": "a", "shape": [True]}, "int_type"),
        ({"name": "a", "shape": ["2"]}, "int_type"),
        ({"name": "a", "shape": [1] * 9}, "too_long"),
        ({"name": "", "shape": [1]}, "string_too_short"),
        ({"name": "../etc/passwd", "shape": [1]}, "string_pattern_mismatch"),
        ({"name": "a\n", "shape": [1]}, "string_pattern_mismatch"),
        ({"name": "a"}, "missing"),
        ({"name": "a", "shape": [1], "dtype": "float64"}, "extra_forbidden"),
    ],
)
def test_an_impossible_tensor_is_refused(tensor: dict[str, object], code: str) -> None:
    assert code in layout_refusals([tensor])


def test_a_layout_needs_a_tensor() -> None:
    assert layout_refusals([]) == ["too_short"]
