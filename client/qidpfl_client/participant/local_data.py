"""The data of this machine as a `DataSource`: the records of the workload, or a shard of them, and a trainer."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from qidpfl_shared.protocol.task_spec import PrivacySpec, TaskSpec
from qidpfl_shared.protocol.wire import Vector32
from qidpfl_shared.workloads.label_pools import Shard
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.networks import check_layout, check_records_stay_apart
from qidpfl_shared.workloads.own_data.reading import OwnFiles
from qidpfl_shared.workloads.own_data.workload import DATA_FLAG, check_own_model, own_data
from qidpfl_shared.workloads.partitions import all_shards, require_shard
from qidpfl_shared.workloads.records import Records
from qidpfl_shared.workloads.workload import UnknownWorkload, Workload

from ..noise import NoiseSource
from ..training.data_loader import DataLoader
from ..training.reuse import SharedTraining
from ..training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class LocalData:
    """Where the owner's data are, and which of them the client uses.

    In a testbed (the task has a partition) a client uses the shard of its ordinal. With `all_records` it uses all
    records of this machine, as an owner of real data does. `files` are the owner's own data: always all of them.
    """

    device: torch.device
    data_dir: Path | None = None
    custom_workload: str | None = None
    all_records: bool = False
    files: OwnFiles | None = None
    model: str | None = None

    def __call__(self, spec: TaskSpec) -> "OpenedData":
        if spec.data is not None or self.files is not None:
            return self._own(spec)
        wanted = spec.workload.whole if self.all_records else spec.workload
        workload = load_workload(wanted, data_dir=self.data_dir, custom=self.custom_workload)
        network = workload.network()
        check_layout(network, spec.layout)
        check_records_stay_apart(network)
        workload.training()
        return OpenedData(workload=workload, spec=spec, device=self.device, all_records=self.all_records)

    def _own(self, spec: TaskSpec) -> "OpenedData":
        """The owner's own data, for a task that states their features."""
        if self.files is None:
            raise UnknownWorkload(
                f"the task {spec.workload.dataset!r} takes the data of its owners: start with {DATA_FLAG} FOLDER|FILE"
            )
        workload = own_data(spec, files=self.files, model=self.model)
        network = workload.network()
        check_own_model(network, spec, self.model or spec.workload.network)
        check_records_stay_apart(network)
        workload.training()
        return OpenedData(workload=workload, spec=spec, device=self.device, all_records=True)


@dataclass(frozen=True, kw_only=True)
class OpenedData:
    """Data that fit the task. They are divided once for all clients of this process."""

    workload: Workload
    spec: TaskSpec
    device: torch.device
    all_records: bool

    @property
    def device_type(self) -> str:
        return self.device.type

    @property
    def claimed(self) -> bool:
        return False

    def learner(self, ordinal: int) -> "RecordsLearner":
        records = self.workload.training()
        partition = self.spec.workload.partition
        if partition is not None and not self.all_records:
            require_shard(partition, ordinal)
            records = records.take(self._shards[ordinal])
        return RecordsLearner(records=records, spec=self.spec, device=self.device, shared=self._shared)

    @cached_property
    def _shared(self) -> SharedTraining:
        """Networks for all clients of this process. The first one is checked here, before they enrol."""
        return SharedTraining(
            self.workload.network, examples=self.workload.training(), layout=self.spec.layout, device=self.device
        )

    @cached_property
    def _shards(self) -> list[Shard]:
        partition = self.spec.workload.partition
        assert partition is not None
        return all_shards(labels=self.workload.training().labels, partition=partition)


@dataclass(frozen=True, kw_only=True)
class RecordsLearner:
    """A `Learner` for some records of a workload."""

    records: Records
    spec: TaskSpec
    device: torch.device
    shared: SharedTraining
    # The records as tensors, if there is memory for them.
    _kept: list[DataLoader] = field(default_factory=list, init=False, repr=False)

    @property
    def device_type(self) -> str:
        return self.device.type

    @property
    def claimed(self) -> bool:
        return False

    @property
    def size(self) -> int:
        return len(self.records)

    @property
    def label_counts(self) -> npt.NDArray[np.int64]:
        return self.records.label_counts(self.spec.workload.labels)

    @cached_property
    def fingerprint(self) -> str:
        return self.records.fingerprint()

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        loader = self._kept[0] if self._kept else self._load()
        # A network per training, not per client: a fleet then holds as many as it has workers.
        with self.shared.network() as network:
            return Trainer.with_checked(network, loader).release(
                privacy=privacy, model=model, rho=rho, noise=noise, name=name
            )

    def _load(self) -> DataLoader:
        loader, may_stay = self.shared.loader(self.records)
        if may_stay:
            self._kept.append(loader)
        return loader
