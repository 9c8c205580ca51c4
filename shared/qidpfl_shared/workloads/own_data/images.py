"""`ImageReader`: images of the size that the task states, from files or from bytes. Pillow decodes them."""

import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ...protocol.task_spec import DataSpec
from ..records import Records
from ..workload import DataMismatch, DataMissing
from .labels import LabelReader
from .spool import Spool

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
# Eight bits per channel. Others, such as 16 bits, would lose most of their values.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


class ImageReader:
    """Reads images one by one. The records lie in memory, or in a file if they are many."""

    def __init__(self, spec: DataSpec, labels: LabelReader) -> None:
        assert spec.image is not None
        self._image = spec.image
        self.label_column = spec.label.column
        self._labels = labels
        self._pixels = Spool(spec.record_shape, np.uint8)
        self._numbers = Spool((), np.int64)

    def read(self, source: Path | IO[bytes], label: object, place: str) -> None:
        """Read one image. Raises `DataMismatch` if it has another size or cannot be decoded."""
        self.add(self._decoded(source, place), label, place)

    def add(self, pixels: npt.NDArray[Any], label: object, place: str) -> None:
        """Add one image as an array of channels, height and width."""
        self._pixels.append(pixels[None])
        self._numbers.append(self._labels.read([label], lambda _: place))

    def finish(self, name: str) -> tuple[Records, list[str]]:
        """All records. Raises `DataMismatch` or `DataMissing` if they do not fit the task."""
        if not len(self._numbers):
            raise DataMissing(f"{name} has no images")
        self._labels.check()
        records = Records(
            features=self._pixels.array(),
            labels=self._numbers.array(),
            scale=self._image.scale,
            shift=self._image.shift,
        )
        return records, []

    def arranged(self, images: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """Images of an array as channels, height and width. Raises `DataMismatch` if they have another shape."""
        wanted = (self._image.channels, self._image.height, self._image.width)
        channels, height, width = wanted
        if images.shape[1:] == (height, width) and channels == 1:
            images = images[:, None]
        elif images.shape[1:] == (height, width, channels) and images.shape[1:] != wanted:
            images = images.transpose(0, 3, 1, 2)
        if images.shape[1:] != wanted:
            shape = "x".join(map(str, images.shape[1:]))
            raise DataMismatch(f"{name}: an image is {shape}, but the task takes {'x'.join(map(str, wanted))}")
        if images.dtype != np.uint8:
            if images.size and not (np.all(images >= 0) and np.all(images <= 255) and np.all(images == images.round())):
                raise DataMismatch(f"{name}: pixels must be whole numbers from 0 to 255; the task scales them")
            images = images.astype(np.uint8)
        return images

    def _decoded(self, source: Path | IO[bytes], place: str) -> npt.NDArray[np.uint8]:
        try:
            from PIL import Image, UnidentifiedImageError
        except ImportError as error:
            raise DataMissing("pillow is needed to read images; install it: pip install pillow") from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(source) as image:
                    self._check(image.size, image.mode, place)
                    pixels = np.asarray(image.convert("L" if self._image.channels == 1 else "RGB"), dtype=np.uint8)
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
            raise DataMismatch(f"{place} is not a readable image; remove or repair it") from error
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def _check(self, size: tuple[int, int], mode: str, place: str) -> None:
        width, height = size
        wanted = self._image
        if (width, height) != (wanted.width, wanted.height):
            raise DataMismatch(
                f"{place} is {width}x{height}, but the task takes {wanted.width}x{wanted.height} (width x height);"
                f" resize a copy of all images, e.g. with ImageMagick: mogrify -resize {wanted.width}x{wanted.height}!"
            )
        if mode not in _MODES:
            raise DataMismatch(f"{place} has pixels of kind {mode}; save a copy with 8 bits per channel")


def read_image_folder(folder: Path, images: ImageReader) -> list[str]:
    """Read the images of a folder: each folder in it has the name of a label. Return the files that are not used."""
    unused: list[str] = []
    for labelled in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for path in sorted(labelled.rglob("*")):
            if path.suffix.lower() in SUFFIXES:
                images.read(path, labelled.name, f"{labelled.name}/{path.name}")
            elif path.is_file():
                unused.append(f"{labelled.name}/{path.name}")
    return unused
