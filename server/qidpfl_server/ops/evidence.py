"""The part of an export with which others check it: the chain of the task, the rows that it covers, the signed head.

`qidpfl-client verify` and `qidpfl-server audit --head` read these files. The rows of rounds hold nothing that the
tables of the export do not hold too. The rows of models and of late evaluations have a file of their own, because
earlier clients take every line of `rows.jsonl` for a round.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qidpfl_shared.protocol.messages import RoundState
from qidpfl_shared.protocol.signatures import ChainHead, ChainPosition

from ..errors import CoordinatorError
from ..store.guarded import evaluation_row, evaluation_subject, model_rows, round_rows, round_subject
from ..store.transaction import Transaction

CHAIN_FILE, ROWS_FILE, MODELS_FILE, PROOF_FILE = "chain.jsonl", "rows.jsonl", "models.jsonl", "proof.json"
_HEAD = re.compile(r"(?P<task_id>[0-9a-f]{1,64}|store)=(?P<sequence>[0-9]{1,15}):(?P<head>[0-9a-f]{64})")


def evidence_files(tx: Transaction, task_id: str) -> dict[str, bytes]:
    """The files by name."""
    head = tx.chain.signed_head(task_id)
    proof = {
        "head": None if head is None else head.model_dump(mode="json"),
        "keys": tx.keys.all().model_dump(mode="json")["keys"],
    }
    return {
        CHAIN_FILE: _lines(asdict(entry) for entry in tx.chain.entries(task_id)),
        ROWS_FILE: _lines(_closed_rounds(tx, task_id)),
        MODELS_FILE: _lines(_models_and_evaluations(tx, task_id)),
        PROOF_FILE: f"{json.dumps(proof, indent=2)}\n".encode(),
    }


def _closed_rounds(tx: Transaction, task_id: str) -> Iterator[dict[str, Any]]:
    for round_ in tx.rounds.of_task(task_id):
        if round_.state is not RoundState.OPEN:
            rows = round_rows(tx.connection, task_id, round_.round_number)
            yield {"subject": round_subject(round_.round_number), "rows": rows}


def _models_and_evaluations(tx: Transaction, task_id: str) -> Iterator[dict[str, Any]]:
    for subject, row in model_rows(tx.connection, task_id):
        yield {"subject": subject, "row": row}
    for round_ in tx.rounds.of_task(task_id):
        evaluated = evaluation_row(tx.connection, task_id, round_.round_number)
        if evaluated is not None:
            yield {"subject": evaluation_subject(round_.round_number), "row": evaluated}


def _lines(values: Iterator[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(value, separators=(',', ':'))}\n" for value in values).encode()


def kept_head(text: str) -> ChainHead:
    """A head that was kept outside: `TASK_ID=SEQUENCE:HASH`, or the file proof.json of an export.

    Raises:
        CoordinatorError: the text is neither.
    """
    if (match := _HEAD.fullmatch(text)) is not None:
        position = ChainPosition(task_id=match["task_id"], sequence=int(match["sequence"]), head=match["head"])
        return ChainHead(chain=position)
    try:
        found = ChainHead.model_validate(json.loads(Path(text).read_text())["head"])
    except OSError as error:
        raise CoordinatorError(
            f"--head {text} is neither TASK_ID=SEQUENCE:HASH nor a file: {error.strerror or error}"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "its head is invalid" if isinstance(error, ValidationError) else "it is not a proof.json of an export"
        raise CoordinatorError(f"--head {text}: {reason}") from error
    if found.chain is None:
        raise CoordinatorError(f"--head {text}: it has no head")
    return found


def shown(head: ChainPosition) -> str:
    """A head as `--head` takes it."""
    return f"{head.task_id}={head.sequence}:{head.head}"
