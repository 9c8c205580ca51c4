"""docs/clients.md describes the errors, the calls and the retries."""

import re
from pathlib import Path

import pytest

from qidpfl_client import errors
from qidpfl_client.api import AdminApi, Retries, TaskApi
from qidpfl_client.errors import ApiError
from qidpfl_client.participant.bidding import DeclineCode
from qidpfl_client.sdk.answers import LARGE, SMALL, SPEC
from qidpfl_client.sdk.retries import REPEATED_STATUSES
from qidpfl_shared.protocol.ledger import Decline

DOCUMENT = (Path(__file__).parents[4] / "docs" / "clients.md").read_text()


def tree(text: str) -> list[str]:
    """The lines of a tree of errors, without those that no call raises."""
    lines = [line for line in text.splitlines() if re.match(r" *[A-Z]\w+( {2,}\S|$)", line)]
    return [line for line in lines if not re.match(r" *(JournalError|OwnerLimit)", line)]


def test_the_document_shows_the_same_tree_of_errors_as_the_module() -> None:
    (drawn,) = re.findall(r"^```\n(ClientError\n.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert errors.__doc__ is not None
    assert set(tree(drawn)) <= set(tree(errors.__doc__))
    names = {line.split()[0] for line in tree(drawn)}
    assert names >= {kind.__name__ for kind in ApiError.__subclasses__()}


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    assert errors.__doc__ is not None
    above: list[str] = []
    drawn = {}
    for line in re.findall(r"^ *[A-Z]\w+(?=  |$)", errors.__doc__, re.MULTILINE):
        depth, name = (len(line) - len(line.lstrip())) // 2, line.strip()
        drawn[name] = above[depth - 1] if depth else "Exception"
        above[depth:] = [name]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in kinds if kind.__base__ is not None}


@pytest.mark.parametrize("api", [TaskApi, AdminApi])
def test_every_call_is_documented(api: type) -> None:
    calls = [name for name, member in vars(api).items() if callable(member) and not name.startswith("_")]
    assert [name for name in calls if not re.search(rf"`{name}[`(]", DOCUMENT)] == []


def test_the_document_says_how_often_and_when_calls_are_retried() -> None:
    text = " ".join(DOCUMENT.split())
    default = Retries()
    assert default.attempts == 6 and "up to six attempts" in text
    assert f"within about {default.timeout_s:g} seconds" in text
    assert f"1, 2, 4 … {default.wait_max_s:g} seconds" in text and default.wait_initial_s == 1
    assert f"up to {default.retry_after_max_s:g} seconds" in text
    assert (SMALL, SPEC, LARGE) == (64 * 1024, 4 * 1024**2, 16 * 1024**2)


def test_the_protocol_alone_lists_the_statuses_after_which_a_client_retries() -> None:
    statuses = ", ".join(str(status) for status in sorted(REPEATED_STATUSES))
    folder = Path(__file__).parents[4]
    assert f"| no answer, or {statuses} | retries the same request" in (folder / "docs" / "protocol.md").read_text()
    others = [page.name for page in (folder / "docs").glob("*.md") if "502" in page.read_text()]
    assert sorted(others) == ["clients.md", "protocol.md"]
    # Programs that do not use the SDK.
    assert f"000 | {statuses.replace(', ', ' | ')}) ;;" in DOCUMENT
    assert f"[{statuses}].includes(answer.status)" in (folder / "examples" / "custom_client.mjs").read_text()


def test_the_protocol_explains_every_reason_of_a_decline() -> None:
    page = (Path(__file__).parents[4] / "docs" / "protocol.md").read_text()
    table = page.split("| reason | when |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [code.value for code in DeclineCode]
    described = Decline.model_fields["reason"].description
    assert described is not None and all(code.value in described for code in DeclineCode)
