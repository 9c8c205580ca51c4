"""The two ways to read a message."""

import pytest

from support.protocol.message_examples import Reader, read_objects, read_text


@pytest.fixture(params=[read_objects, read_text], ids=["objects", "text"])
def read(request: pytest.FixtureRequest) -> Reader:
    reader: Reader = request.param
    return reader
