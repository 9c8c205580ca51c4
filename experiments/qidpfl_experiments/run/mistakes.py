"""Which test records the last model of a cell gets wrong: from this the report knows the test set's own error.

Two methods are compared on the same records. How far chance in the choice of these records moves their difference
depends on how often they disagree, which their two accuracies do not tell.
"""

import threading
from functools import cache
from pathlib import Path

import numpy as np

from qidpfl_client.api import AdminApi
from qidpfl_shared.protocol.mechanism_specs import BoltOn
from qidpfl_shared.protocol.messages import TaskView
from qidpfl_shared.protocol.task_spec import WorkloadSpec
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.records import Records, bounded
from qidpfl_shared.workloads.workload import Workload

from ..results.mistakes import packed
from ..results.tables import Key, MistakesRow

# Enough records to know the rate of disagreement; more would only make the tables longer.
_EXAMINED = 5000
_BATCH = 500


class ExaminedRecords:
    """The test records of one data set, read once for all cells."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._known: dict[WorkloadSpec, tuple[Workload, Records]] = {}
        self._loading = threading.Lock()

    def mistakes(self, key: Key, api: AdminApi, task: TaskView) -> MistakesRow | None:
        """The mistakes of the last model of a task; None if its workload has no test records."""
        import torch

        from qidpfl_shared.workloads.networks import load_parameters

        spec = task.spec
        workload, records = self._of(spec.workload)
        if len(records) < 2 or spec.workload.validation_records:
            return None
        examined = _reported_half(len(records))
        network = workload.network().eval()
        load_parameters(network, api.model(task.task_id, api.models(task.task_id)[-1]), spec.layout)
        mechanism = spec.privacy.mechanism
        wrong = []
        with torch.inference_mode():
            for start in range(0, len(examined[:_EXAMINED]), _BATCH):
                part = np.sort(examined[:_EXAMINED])[start : start + _BATCH]
                inputs = records.inputs(part)
                if isinstance(mechanism, BoltOn):
                    inputs = bounded(inputs, norm=mechanism.feature_norm)
                found = network(torch.from_numpy(inputs)).argmax(dim=1).numpy()
                wrong.append(found != records.labels[part])
        return MistakesRow(
            **vars(key),
            tested=len(examined),
            examined=min(len(examined), _EXAMINED),
            wrong=packed(np.concatenate(wrong)),
        )

    def _of(self, workload: WorkloadSpec) -> tuple[Workload, Records]:
        whole = workload.whole.model_copy(update={"partition": None})
        with self._loading:
            if whole not in self._known:
                loaded = load_workload(whole, data_dir=self._data_dir)
                held_out = loaded.held_out()
                assert held_out is not None
                self._known[whole] = (loaded, held_out)
            return self._known[whole]


@cache
def examined_records(data_dir: Path | None) -> ExaminedRecords:
    """The test records of this folder of data sets."""
    return ExaminedRecords(data_dir)


def _reported_half(count: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """The records on which the coordinator reports the accuracy: those that decide nothing."""
    order = np.random.default_rng(0).permutation(count)
    return order[count // 2 :]
