"""The records that a client on this machine learns from."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from qidpfl_client.participant.local_data import LocalData
from qidpfl_shared.protocol.presets import preset
from qidpfl_shared.workloads.loading import load_workload
from qidpfl_shared.workloads.partitions import shard
from qidpfl_shared.workloads.workload import PartitionError
from support.coordinators import running

pytestmark = pytest.mark.live

CLIENTS = 10
EQUAL = {"kind": "iid", "two_class_ordinals": []}
PORTION = {"workload": {"training_records": 500, "validation_records": 300, "partition": EQUAL}}


def test_the_clients_of_a_testbed_divide_the_portion_that_the_task_names() -> None:
    spec = preset("digits", PORTION)
    data = LocalData(device=torch.device("cpu"))(spec)
    divided = np.concatenate([data.learner(ordinal).records.features for ordinal in range(CLIENTS)])
    portion = load_workload(spec.workload).training().features
    assert np.array_equal(np.unique(divided, axis=0), np.unique(portion, axis=0))
    assert [data.learner(ordinal).size for ordinal in range(CLIENTS)] == [50] * CLIENTS


def test_every_client_has_the_shard_that_the_partition_gives_it_and_no_other_is_there() -> None:
    spec = preset("digits", PORTION)
    assert spec.workload.partition is not None
    data = LocalData(device=torch.device("cpu"))(spec)
    records = load_workload(spec.workload).training()
    for ordinal in (7, 0, 9, 7):
        own = records.take(shard(labels=records.labels, partition=spec.workload.partition, ordinal=ordinal))
        assert data.learner(ordinal).fingerprint == own.fingerprint()
    for ordinal in (-1, CLIENTS):
        with pytest.raises(PartitionError, match="there is no shard"):
            data.learner(ordinal)


def test_a_client_with_its_own_data_trains_on_all_of_them() -> None:
    data = LocalData(device=torch.device("cpu"), all_records=True)(preset("digits", PORTION))
    assert data.learner(3).size == 1437


def test_more_records_than_there_are_end_a_client_with_one_line(tmp_path: Path) -> None:
    with running(tmp_path / "state") as coordinator:
        _, code = coordinator.create_task(workload={"training_records": 1438})
        command = [sys.executable, "-m", "qidpfl_client", "run", "--server", coordinator.url, "--code", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("qidpfl-client: ")
    assert "1438 others for training, but there are 1437" in done.stderr and "Traceback" not in done.stderr
