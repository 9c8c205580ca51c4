"""`import_torchvision`: torchvision's data sets, also where its build does not match the one of torch."""

import importlib
from types import ModuleType
from typing import Any

# What torchvision registers Python code for when it is imported. A build for another kind of torch cannot load its own
# library, and its import fails because these are missing. Data sets never call them.
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[object] = []


def import_torchvision() -> ModuleType:
    """The module `torchvision.datasets`."""
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
    # The definitions live as long as this object.
    _libraries.append(library)
