"""The codes with which the protocol refuses a message, a task or a vector."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from qidpfl_shared.protocol.errors import ErrorCode
from qidpfl_shared.protocol.wire import WireError

Json = dict[str, Any]


def codes_of(read: Callable[..., object], *arguments: object) -> list[str]:
    """The codes of a refusal; none at all if it is accepted."""
    try:
        read(*arguments)
    except ValidationError as refusal:
        return [error["type"] for error in refusal.errors()]
    return []


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(WireError) as caught:
        call()
    return caught.value.code
