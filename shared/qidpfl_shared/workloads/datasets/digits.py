"""Scikit-learn's digits: 1797 images of 8x8 pixels that come with its wheel, so that nothing is downloaded."""

import numpy as np

from ..workload import DataMissing
from .images import Images

TRAINING = 1437


def read_digits(*, training: bool) -> Images:
    """The first 1437 digits, or the remaining 360, which nobody trains on."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataMissing("the digits come with scikit-learn, which is not installed") from error
    data = load_digits()
    part = slice(None, TRAINING) if training else slice(TRAINING, None)
    return Images(pixels=data.images[part, None].astype(np.uint8), labels=data.target[part].astype(np.int64))
