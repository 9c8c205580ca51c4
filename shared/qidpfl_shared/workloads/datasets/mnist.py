"""MNIST: 70,000 handwritten digits of 28x28 pixels."""

import numpy as np

from ..workload import DataMissing
from .folder import DataFolder
from .idx import read_idx
from .images import Images


def read_mnist(folder: DataFolder, *, training: bool) -> Images:
    """The training or the test part."""
    part = "train" if training else "t10k"
    return read_idx_images(folder, dataset="mnist", prefix=f"MNIST/raw/{part}", labels=10)


def read_idx_images(folder: DataFolder, *, dataset: str, prefix: str, labels: int) -> Images:
    """Grey images of 28x28 and their labels, from a pair of IDX files."""
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    image_file, label_file = folder.files(dataset, names)
    pixels, targets = read_idx(image_file, dimensions=3), read_idx(label_file, dimensions=1)
    if pixels.shape != (len(targets), 28, 28):
        raise DataMissing(f"{image_file} holds an array {pixels.shape}, not {len(targets)} images of 28x28")
    if len(targets) == 0 or targets.max() >= labels:
        raise DataMissing(f"{label_file} does not hold labels from 0 to {labels - 1}")
    return Images(pixels=pixels[:, None], labels=targets.astype(np.int64))
