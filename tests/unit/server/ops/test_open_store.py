"""Opening a store: which files it creates, and their permissions."""

import os
from pathlib import Path

import pytest

from qidpfl_server.cli.serve import ensure_task
from qidpfl_server.errors import DamagedState
from qidpfl_server.ops.open_store import opened_store
from qidpfl_server.service.tasks import task_spec
from qidpfl_server.settings import Settings

pytestmark = pytest.mark.slow

SPEC = task_spec("digits", {})


def test_a_store_that_does_not_exist_is_created_only_on_request(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state")
    with pytest.raises(DamagedState, match="there is no store at sqlite:///"), opened_store(settings):
        pass
    assert not (tmp_path / "state").exists()
    with opened_store(settings, create=True) as store:
        assert store.blobs.present
    with opened_store(settings) as store:
        assert store.read(lambda tx: tx.tasks.count()) == 0


def test_only_the_operator_can_read_the_database_and_the_folder_made_for_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with opened_store(Settings(state_dir=tmp_path / "state"), create=True) as store:
            ensure_task(store, name="mine", preset_name="digits", spec=SPEC, write_down=lambda _: None)
            files = list((tmp_path / "state").glob("coordinator.db*"))
            assert len(files) > 1
            assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
