"""What the client must know of the records of a Flower app: their labels, and nothing else.

An app loads its data by itself. Its labels come from a function of the owner, or from the files that the app reads.
"""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from qidpfl_client.errors import Misconfigured
from qidpfl_client.participant.program import ProgramRecords
from qidpfl_shared.plugin_loader import described
from qidpfl_shared.protocol.task_spec import TaskSpec
from qidpfl_shared.workloads.own_data.reading import OwnFiles, read_own_data
from qidpfl_shared.workloads.workload import DataMismatch, LabelMismatch, UnknownWorkload


def records_of_labels(labels: object, *, wanted: int) -> ProgramRecords:
    """The records with these labels: whole numbers from 0, one for each record that the app trains on.

    Raises `LabelMismatch` for anything else. The fingerprint sees the labels only, in their order.

    >>> records_of_labels([0, 2, 2], wanted=3).label_counts.tolist()
    [1, 0, 2]
    """
    try:
        values = np.asarray(labels)
    except Exception as error:
        raise LabelMismatch(f"the labels are no array: {described(error)}") from None
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise LabelMismatch(f"the labels must be whole numbers in one list, not {values.dtype} {values.shape}")
    if not values.size:
        raise DataMismatch("there are no labels, so there are no records to take part with")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= wanted:
        raise LabelMismatch(f"the labels are from {low} to {high}, those of the task from 0 to {wanted - 1}")
    exact = np.ascontiguousarray(values.astype("<i8"))
    return ProgramRecords(
        label_counts=np.bincount(exact, minlength=wanted).astype(np.int64),
        fingerprint=hashlib.sha256(b"labels " + exact.tobytes()).hexdigest(),
    )


def records_of_files(spec: TaskSpec, files: OwnFiles) -> ProgramRecords:
    """The records of the owner's files, checked against the features that the task states."""
    if spec.data is None:
        raise UnknownWorkload("the task states no features of own data: name the labels with --labels module:function")
    records = read_own_data(files, spec.data).records
    return ProgramRecords(label_counts=records.label_counts(spec.workload.labels), fingerprint=records.fingerprint())


def asked_labels(function: Callable[..., Any], context: Any) -> object:
    """What the owner's function returns. It may take the context of Flower, which has the node's configuration.

    Raises `Misconfigured` if it fails.
    """
    try:
        takes_context = bool(inspect.signature(function).parameters)
        return function(context) if takes_context else function()
    except Exception as error:
        raise Misconfigured(f"the function that returns the labels failed: {described(error)}") from error
