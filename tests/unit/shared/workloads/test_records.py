"""Records as arrays."""

import numpy as np
import pytest

from qidpfl_shared.workloads.records import Records, bounded


def records(**changes: object) -> Records:
    features = np.array([[0, 16], [8, 4], [2, 1]], dtype=np.uint8)
    values: dict[str, object] = {"features": features, "labels": np.array([0, 1, 1]), "scale": 1 / 16, "shift": -1.0}
    return Records(**{**values, **changes})  # type: ignore[arg-type]


def test_inputs_are_scaled_and_shifted_float32() -> None:
    inputs = records().inputs(np.array([1, 0]))
    assert inputs.dtype == np.float32
    assert inputs.tolist() == [[-0.5, -0.75], [-1.0, 0.0]]


def test_features_that_are_floats_already_are_not_changed_in_place() -> None:
    kept = records(features=np.ones((3, 2), dtype=np.float32))
    assert kept.inputs().tolist() == [[1 / 16 - 1] * 2] * 3
    assert kept.features.tolist() == [[1.0, 1.0]] * 3


def test_taking_some_keeps_the_constants() -> None:
    some = records().take(np.array([2]))
    assert len(some) == 1
    assert np.array_equal(some.inputs(), records().inputs(slice(2, 3)))


def test_label_counts_include_labels_that_do_not_occur() -> None:
    assert records().label_counts(4).tolist() == [1, 2, 0, 0]


def test_features_and_labels_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="3 features, but 2 labels"):
        records(labels=np.array([0, 1]))


@pytest.mark.parametrize(
    "other",
    [{"scale": 1.0}, {"shift": 0.0}, {"labels": np.array([1, 0, 1])}, {"features": np.zeros((3, 2), dtype=np.uint8)}],
)
def test_a_fingerprint_tells_data_sets_apart(other: dict[str, object]) -> None:
    assert records().fingerprint() == records().fingerprint()
    assert records(**other).fingerprint() != records().fingerprint()


def test_a_fingerprint_does_not_depend_on_the_order_in_memory() -> None:
    turned = np.asfortranarray(records().features)
    assert records(features=turned).fingerprint() == records().fingerprint()


def test_bounded_records_keep_their_direction_and_stay_below_the_norm() -> None:
    features = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [3e19, 4e19]], dtype=np.float32)
    shrunk = bounded(features, norm=1.0)
    norms = np.linalg.norm(shrunk.astype(np.float64), axis=1)
    assert (norms <= 1.0).all()
    assert norms[[0, 3]] == pytest.approx(1.0, abs=1e-5)
    assert shrunk[0] == pytest.approx([0.6, 0.8], abs=1e-5)
    assert np.array_equal(shrunk[1:3], features[1:3])
