"""`import_torchvision`: torchvision's data sets, even if its build does not match the one of torch."""

import importlib
from types import ModuleType
from typing import Any

# torchvision registers Python code for these operators at its import. If its build does not match the one of torch, its
# library does not load, and the import fails because the operators are missing. Data sets never call them.
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []


def import_torchvision() -> ModuleType:
    """Return the module `torchvision.datasets`. Raises `ImportError` if torchvision is not installed."""
    try:
        return importlib.import_module("torchvision.datasets")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _define_missing_operators()
    return importlib.import_module("torchvision.datasets")


def _define_missing_operators() -> None:
    import torch

    untyped: Any = torch.library.Library
    library = untyped("torchvision", "DEF")
    for schema in _OPERATORS:
        library.define(schema)
    # The definitions exist as long as this object.
    _libraries.append(library)
