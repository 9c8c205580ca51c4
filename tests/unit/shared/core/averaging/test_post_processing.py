"""The low-pass of the average: the transform of scipy, the same bits for every cut into blocks, and what it leaves."""

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.fft import dctn, idctn

from qidpfl_shared.core.arguments import ImpossibleArgument, Vector
from qidpfl_shared.core.averaging.post_processing import ImageRows, LowPass

ROWS = ImageRows(images=3, height=8, width=6)
FILTER = LowPass(rows=ROWS, cutoff=3.5)
AVERAGE = np.random.default_rng(4).standard_normal(3 * 48 + 5)


def blocks(values: Vector, length: int) -> Iterator[tuple[int, Vector]]:
    for start in range(0, values.size, length):
        yield start, values[start : start + length]


def whole(lowpass: LowPass, values: Vector, length: int = 10**6) -> Vector:
    parts = list(lowpass(blocks(values, length)))
    assert [start for start, _ in parts] == np.cumsum([0, *(part.size for _, part in parts[:-1])]).tolist()
    return np.concatenate([part for _, part in parts])


@pytest.mark.parametrize(("height", "width", "cutoff"), [(28, 28, 12.0), (8, 8, 3.4), (5, 9, 4.0), (3, 3, 100.0)])
def test_the_high_cosine_coefficients_are_zero_and_the_others_stay(height: int, width: int, cutoff: float) -> None:
    image = np.random.default_rng(1).standard_normal((height, width))
    down, across = np.mgrid[:height, :width]
    coefficients = dctn(image, norm="ortho")
    coefficients[np.hypot(down, across) >= cutoff] = 0
    lowpass = LowPass(rows=ImageRows(images=1, height=height, width=width), cutoff=cutoff)
    np.testing.assert_allclose(lowpass.filtered(image), idctn(coefficients, norm="ortho"), atol=1e-10)
    assert lowpass.kept_part == pytest.approx(np.count_nonzero(np.hypot(down, across) < cutoff) / (height * width))


@pytest.mark.parametrize("length", [1, 5, 47, 48, 49, 100, 144, 146])
def test_the_bits_do_not_depend_on_the_blocks(length: int) -> None:
    assert whole(FILTER, AVERAGE, length).tobytes() == whole(FILTER, AVERAGE).tobytes()


def test_parameters_after_the_images_stay_as_they_are() -> None:
    assert whole(FILTER, AVERAGE)[-5:].tolist() == AVERAGE[-5:].tolist()


def test_a_model_of_images_only_is_filtered_to_its_end() -> None:
    filtered = whole(FILTER, AVERAGE[: 3 * 48], 50)
    assert filtered.size == 3 * 48
    np.testing.assert_allclose(filtered, whole(FILTER, AVERAGE)[: 3 * 48], rtol=0)


def test_filtering_twice_changes_nothing_more() -> None:
    once = whole(FILTER, AVERAGE)
    np.testing.assert_allclose(whole(FILTER, once), once, atol=1e-10)


def test_white_noise_loses_the_part_of_its_energy_that_the_filter_says() -> None:
    rows = ImageRows(images=2000, height=8, width=8)
    lowpass = LowPass(rows=rows, cutoff=rows.default_cutoff)
    noise = np.random.default_rng(2).standard_normal(rows.images * rows.pixels)
    kept = float(np.sum(whole(lowpass, noise) ** 2) / np.sum(noise**2))
    assert kept == pytest.approx(lowpass.kept_part, rel=0.02)


def test_the_default_cutoff_is_twelve_for_28_pixels() -> None:
    assert ImageRows(images=1, height=28, width=28).default_cutoff == 12
    assert ImageRows(images=1, height=56, width=28).default_cutoff == 12
    assert ImageRows(images=1, height=14, width=14).default_cutoff == 6


def test_the_bits_are_those_of_other_machines() -> None:
    average = np.random.Generator(np.random.PCG64(3)).integers(-999, 999, 10 * 784) / 1024
    lowpass = LowPass(rows=ImageRows(images=10, height=28, width=28), cutoff=12.0)
    digest = hashlib.sha256(whole(lowpass, average).astype("<f8").tobytes()).hexdigest()[:16]
    assert digest == "2791e31df4b0a20c"


@pytest.mark.parametrize("broken", [[(0, AVERAGE[:60])], [(1, AVERAGE)], [(0, AVERAGE[:60]), (70, AVERAGE[70:])]])
def test_blocks_with_gaps_are_refused(broken: list[tuple[int, Vector]]) -> None:
    with pytest.raises(ImpossibleArgument):
        list(FILTER(broken))


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("nan")])
def test_an_impossible_cutoff_is_refused(cutoff: float) -> None:
    with pytest.raises(ImpossibleArgument):
        LowPass(rows=ROWS, cutoff=cutoff)
