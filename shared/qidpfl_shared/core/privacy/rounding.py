"""Rounding in the private computations: how much it can add to a sensitivity, proven for every model and data set.

A client clips to (1 - `SLACK`) times the bound of its mechanism, or shortens its steps by that factor. The rest pays
for rounding and for the grid of the noise, so that the sensitivity of the mechanism holds for the computed values.
docs/privacy.md has the error analysis. The functions return relative slacks; a release needs their sum to be at most
`SLACK`.

The model of arithmetic: each float32 or float64 operation has a relative error of at most its unit roundoff, in any
order of summation, and numbers below the normal range may become zero.
"""

import math

from .. import arguments

SLACK = 2.0**-10

UNIT_32 = 2.0**-24
UNIT_64 = 2.0**-53
# The number of records whose clipped gradients are added in float32. The sums of such blocks are added in float64.
BLOCK = 64
# The number of squares that are added in float32 for a norm.
NORM_BLOCK = 1024
# Norms of the two factors of a gradient beyond which its record counts as zero. Together with a clip norm of about 1,
# they keep squares that vanish below the range of float32 from hiding a gradient.
LARGEST_GRADIENT_NORM = 2.0**36
LARGEST_INPUT_NORM = 2.0**30
# What vanishing squares can hide of the norm of one gradient, for any model that the protocol allows (2^28 parameters).
_HIDDEN = 2.0**-13


def clipped_mean_slack(*, size: int, chunk: int) -> float:
    """Return the slack of a mean of `size` clipped gradients, computed in chunks of `chunk` records.

    The terms: the norms and factors; the float32 sum of the block with the replaced record; the float64 sum of its
    chunk, of at most one addition per record; and the float64 sum of all chunks.

    >>> clipped_mean_slack(size=60_000, chunk=2_000) < SLACK / 2
    True
    """
    size, chunk = arguments.whole("size", size, minimum=1), arguments.whole("chunk", chunk, minimum=1)
    norms = (NORM_BLOCK + 8) * UNIT_32 + _HIDDEN
    block_sum = (BLOCK + 4) * BLOCK * UNIT_32
    chunk_sum = (chunk + 4) * chunk * UNIT_64
    total = (math.ceil(size / chunk) + 4) * size * UNIT_64
    return norms + block_sum + chunk_sum + total


def clipped_update_slack(*, dimension: int) -> float:
    """Return the slack of a vector of `dimension` numbers that is clipped as a whole in float64."""
    return (arguments.whole("dimension", dimension, minimum=1) + 8) * UNIT_64


def softmax_regression_slack(
    *, size: int, features: int, labels: int, feature_norm: float, model_norm: float, learning_rate: float, steps: int
) -> float:
    """Return the slack of `steps` steps of SGD on softmax regression in float64 (`bolt_on`).

    An exact step does not move two runs apart. A computed step adds at most its own rounding error to each run. That
    error grows with the norm of the model that the coordinator sends.

    >>> softmax_regression_slack(
    ...     size=3000, features=784, labels=10, feature_norm=10.0, model_norm=100.0, learning_rate=0.01, steps=47
    ... ) < SLACK / 100
    True
    """
    size = arguments.whole("size", size, minimum=1)
    rate = arguments.magnitude("learning_rate", learning_rate)
    # The bias is one more feature that is always 1.
    length = math.sqrt(arguments.magnitude("feature_norm", feature_norm) ** 2 + 1)
    gradient = math.sqrt(2) * length
    norm = arguments.non_negative("model_norm", model_norm) + rate * gradient * arguments.whole("steps", steps)
    score_error = (features + 8) * UNIT_64 * length * norm
    gradient_error = length * (4 * score_error + (labels + 64) * UNIT_64) + (size + 4) * UNIT_64 * gradient
    # A step has the error of its gradient, and that of the new model, which is rounded once.
    return size * (gradient_error + 4 * UNIT_64 * norm / rate) / gradient
