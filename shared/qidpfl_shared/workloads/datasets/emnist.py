"""EMNIST ByClass: handwritten digits, capitals and small letters, 62 labels; and a small part of it for laptops."""

import numpy as np

from .folder import DataFolder
from .images import Images
from .mnist import read_idx_images

SMALL_TRAINING, SMALL_HELD_OUT = 10_000, 2_000
_SMALL_SEED = 62
_CHUNK = 50_000


def read_emnist(folder: DataFolder, *, training: bool) -> Images:
    """The training or the test part, upright: the files hold every image transposed."""
    part = "train" if training else "test"
    images = read_idx_images(folder, dataset="emnist", prefix=f"EMNIST/raw/emnist-byclass-{part}", labels=62)
    for start in range(0, len(images.pixels), _CHUNK):
        chunk = images.pixels[start : start + _CHUNK]
        chunk[...] = chunk.swapaxes(2, 3)
    return images


def read_emnist_small(folder: DataFolder, *, training: bool) -> Images:
    """10,000 training records, or 2,000 others: the same choice on every machine that has the same files."""
    images = read_emnist(folder, training=training)
    size = min(SMALL_TRAINING if training else SMALL_HELD_OUT, len(images.labels))
    # The old generator on purpose: numpy promises never to change its stream.
    chosen = np.random.RandomState(_SMALL_SEED).permutation(len(images.labels))[:size]
    return images.take(np.sort(chosen).astype(np.int64))
