"""A table that is larger than the memory is read through a pipe: its records lie in a file that has no name."""

import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from qidpfl_shared.workloads.own_data.spool import Spool
from qidpfl_shared.workloads.workload import DataMissing

_COLUMNS = 12
# Long numbers: parsing takes the time of the test.
_ROW = ",".join(["0.12345678901234567890123456789012345"] * _COLUMNS)
_BLOCK_ROWS, _BLOCKS = 10_000, 60
_LIMIT = 192 << 20

_READER = f"""
import resource
from pathlib import Path
from qidpfl_shared.protocol.task_spec import DataSpec
from qidpfl_shared.workloads.own_data import spool
from qidpfl_shared.workloads.own_data.reading import OwnFiles, read_own_data

spec = DataSpec.model_validate({{
    "columns": [{{"name": f"c{{place}}", "low": 0, "high": 1}} for place in range({_COLUMNS})],
    "label": {{"names": ["no", "yes"]}},
}})
resource.setrlimit(resource.RLIMIT_DATA, ({_LIMIT}, {_LIMIT}))
spool.Spool.__init__.__kwdefaults__["kept_bytes"] = 8 << 20
own = read_own_data(OwnFiles(path=Path("-")), spec)
digest = own.records.fingerprint()
print(len(own.records), *own.records.label_counts(2), type(own.records.features).__name__, digest[:4] != "")
"""


def _write(pipe: "subprocess.Popen[bytes]") -> int:
    assert pipe.stdin is not None
    header = ",".join([*(f"c{place}" for place in range(_COLUMNS)), "label"]) + "\n"
    block = (f"{_ROW},no\n{_ROW},yes\n" * (_BLOCK_ROWS // 2)).encode()
    pipe.stdin.write(header.encode())
    for _ in range(_BLOCKS):
        pipe.stdin.write(block)
    pipe.stdin.close()
    return len(block) * _BLOCKS


@pytest.mark.slow
def test_a_csv_larger_than_the_memory_is_read_from_a_pipe() -> None:
    environment = {"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [sys.executable, "-c", _READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as reader:
        written: list[int] = []
        writer = threading.Thread(target=lambda: written.append(_write(reader)))
        writer.start()
        assert reader.stdout is not None and reader.stderr is not None
        answer, errors = reader.stdout.read().decode(), reader.stderr.read().decode()
        writer.join()
    assert answer.split() == ["600000", "300000", "300000", "memmap", "True"], errors
    assert written[0] > _LIMIT


def test_a_spool_in_a_file_has_what_was_appended() -> None:
    spool = Spool((3,), np.float32, kept_bytes=100)
    blocks = [np.full((7, 3), number, dtype=np.float32) for number in range(5)]
    for block in blocks:
        spool.append(block)
    array = spool.array()
    assert isinstance(array, np.memmap)
    assert np.array_equal(array, np.concatenate(blocks))


def test_a_full_disk_is_one_line_that_says_where_to_find_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool = Spool((), np.int64, kept_bytes=8)
    try:
        # Stands for a full disk: no file may grow beyond this.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        with pytest.raises(DataMissing, match="set TMPDIR to a folder on a larger disk"):
            spool.append(np.zeros(1 << 20, dtype=np.int64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
