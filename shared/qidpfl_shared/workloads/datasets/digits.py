"""Scikit-learn's digits: 1797 images of 8x8 pixels. They come with its wheel, so nothing is downloaded.

A separate module, because only this data set needs scikit-learn.
"""

import numpy as np

from ..workload import DataMissing
from .images import Images

_TRAINING = 1437


def read_digits(*, training: bool) -> Images:
    """Return the first 1437 digits for training, or the other 360 for evaluation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataMissing("the digits come with scikit-learn, which is not installed; install it") from error
    data = load_digits()
    part = slice(None, _TRAINING) if training else slice(_TRAINING, None)
    return Images(pixels=data.images[part, None].astype(np.uint8), labels=data.target[part].astype(np.int64))
