"""The functions of scipy that the core uses, imported at their first call.

`scipy.optimize` and `scipy.special` take longer to import than all of this package. A process that only reads or checks
messages never needs them, and a server is ready before it plans its first round.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Real = float | npt.NDArray[np.float64]


def load() -> None:
    """Import everything now: a server does this in the background, so that no request waits for it."""
    import scipy.optimize
    import scipy.special  # noqa: F401


def minimize_scalar(*arguments: Any, **options: Any) -> Any:
    """`scipy.optimize.minimize_scalar`."""
    from scipy import optimize

    return optimize.minimize_scalar(*arguments, **options)


def brentq(*arguments: Any, **options: Any) -> Any:
    """`scipy.optimize.brentq`."""
    from scipy import optimize

    return optimize.brentq(*arguments, **options)


def ndtr(x: Real) -> Any:
    """`scipy.special.ndtr`: the distribution function of the standard normal distribution."""
    from scipy import special

    return special.ndtr(x)


def ndtri(y: Real) -> Any:
    """`scipy.special.ndtri`: the inverse of `ndtr`."""
    from scipy import special

    return special.ndtri(y)


def log_ndtr(x: Real) -> Any:
    """`scipy.special.log_ndtr`: the logarithm of `ndtr`."""
    from scipy import special

    return special.log_ndtr(x)
