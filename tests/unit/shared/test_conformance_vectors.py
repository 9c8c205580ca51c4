"""docs/conformance: the stored golden vectors are what the core computes today.

`python tests/unit/shared/test_conformance_vectors.py` writes them again, after an intended change.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from qidpfl_shared.core.privacy.discrete_gaussian import GRID, add_noise  # noqa: E402
from support.conformance_vectors import FILES  # noqa: E402

FOLDER = ROOT / "docs" / "conformance"


def content(name: str) -> dict[str, Any]:
    computed: dict[str, Any] = {"what": FILES[name].__doc__, "cases": FILES[name]()}
    return json.loads(json.dumps(computed))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", list(FILES))
def test_the_stored_vectors_are_those_of_the_core(name: str) -> None:
    stored, computed = json.loads((FOLDER / f"{name}.json").read_text()), content(name)
    assert stored["what"] == computed["what"] and len(stored["cases"]) == len(computed["cases"])
    for old, new in zip(stored["cases"], computed["cases"], strict=True):
        assert old["given"] == new["given"]
        assert same(old["expected"], new["expected"]), (old, new)


def same(old: Any, new: Any) -> bool:
    """Texts, whole numbers and truth values are equal; other numbers up to the rounding of another machine."""
    if isinstance(old, float) and isinstance(new, float):
        return old == pytest.approx(new, rel=1e-12, abs=0)
    if isinstance(old, dict) and isinstance(new, dict):
        return list(old) == list(new) and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    return type(old) is type(new) and bool(old == new)


def test_the_folder_has_no_other_vectors_and_its_readme_names_every_file() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(FILES)
    readme = (FOLDER / "README.md").read_text()
    assert all(f"`{name}.json`" in readme for name in FILES)


@pytest.mark.slow
def test_the_gradients_of_two_records_are_those_of_a_network_in_torch() -> None:
    # The unit tests that are not slow need no torch.
    import torch

    for case in content("gradient")["cases"]:
        given = case["given"]
        network = torch.nn.Linear(2, 3).double()
        for record, expected in zip(given["records"], case["expected"]["gradients"], strict=True):
            model = torch.tensor(given["model"], dtype=torch.float64)
            torch.nn.utils.vector_to_parameters(model, network.parameters())
            scores = network(torch.tensor([record["features"]], dtype=torch.float64))
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor([record["label"]]))
            parts = torch.autograd.grad(loss, list(network.parameters()))
            found = torch.cat([part.reshape(-1) for part in parts])
            assert found.tolist() == pytest.approx(expected)


def test_the_vectors_of_the_grid_are_what_the_client_adds() -> None:
    for case in content("grid-rounding")["cases"]:
        given = case["given"]
        (sum_,) = add_noise(values=[given["value"]], std=given["noise_std"], standard_noise=[given["z"] * GRID])
        assert float(np.float32(sum_)) == case["expected"]["released"]
        assert given["value"] / (given["noise_std"] * GRID) == pytest.approx(case["expected"]["k"], abs=0.45)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("payment-check", "holds"),
        ("announcement-check", "accepted"),
        ("chain-order", "consistent"),
        ("key-endorsement", "trusted"),
    ],
)
def test_the_vectors_of_checks_have_good_and_bad_cases(name: str, field: str) -> None:
    outcomes = [bool(case["expected"][field]) for case in content(name)["cases"]]
    assert outcomes.count(True) >= 3 and outcomes.count(False) >= 6


def test_the_vectors_of_answers_have_every_reason_that_depends_on_numbers() -> None:
    answers = [case["expected"]["answer"] for case in content("answers")["cases"]]
    reasons = {answer.get("reason") for answer in answers if answer is not None}
    assert None in answers and reasons == {None, "not_worth_it", "priced_out", "owner_limit"}


def records() -> str:
    """Records for the client under test: every tenth training record of the digits, scaled, each with its label."""
    digits, shard = load_digits(), slice(0, 1437, 10)
    rows = np.column_stack([digits.data[shard] / 16, digits.target[shard]])
    return "".join(",".join(f"{value:g}" for value in row) + "\n" for row in rows)


def test_the_stored_records_are_those_of_the_digits() -> None:
    assert (FOLDER / "records.csv").read_text() == records()


if __name__ == "__main__":
    (FOLDER / "records.csv").write_text(records())
    for name in FILES:
        (FOLDER / f"{name}.json").write_text(json.dumps(content(name), indent=1, ensure_ascii=False) + "\n")
