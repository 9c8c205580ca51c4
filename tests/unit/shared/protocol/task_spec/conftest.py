"""The two ways to read a task."""

import pytest

from qidpfl_shared.protocol.task_spec import TaskSpec
from support.protocol.task_texts import Reader, read_text


@pytest.fixture(params=[TaskSpec.model_validate, read_text], ids=["objects", "text"])
def read(request: pytest.FixtureRequest) -> Reader:
    reader: Reader = request.param
    return reader
