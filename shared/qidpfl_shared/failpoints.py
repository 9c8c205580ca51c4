"""Failpoints: named places where a test can kill the process, as a power failure would.

`QIDPFL_FAILPOINT=settle.before_commit:3` kills the process when it reaches that place for the third time.
"""

import os
import signal
from collections import Counter

# The failpoints that the server reaches in a complete task.
SERVER_FAILPOINTS = (
    "enrol.before_commit",
    "enrol.after_commit",
    "profile.before_commit",
    "profile.after_commit",
    "declare.before_commit",
    "declare.after_commit",
    "upload.before_body",
    "upload.mid_body",
    "upload.blob_staged",
    "upload.before_commit",
    "upload.after_commit",
    "settle.aggregate_computed",
    "settle.model_written",
    "settle.before_commit",
    "settle.after_commit",
)
# Reached only if the model of a round is evaluated after the settlement.
EVALUATION_FAILPOINTS = (
    "evaluate.computed",
    "evaluate.before_commit",
    "evaluate.after_commit",
)
# Reached only if the admin sets the first model of a task.
MODEL_FAILPOINTS = (
    "model.before_commit",
    "model.after_commit",
)
# Reached only if a client gets a new token, or an admin replaces the token of an operator.
TOKEN_FAILPOINTS = (
    "rotate.before_commit",
    "rotate.after_commit",
    "rotate.before_use",
    "rotate.operator_after_commit",
)
# Reached only if an admin deletes a task.
DELETE_FAILPOINTS = (
    "delete.before_commit",
    "delete.after_commit",
)
# Reached only if an admin pauses a task, or resumes it after a pause.
PAUSE_FAILPOINTS = (
    "pause.before_commit",
    "pause.after_commit",
    "resume.before_commit",
    "resume.after_commit",
)

_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Kill the process here if the environment names this failpoint."""
    wanted = os.environ.get("QIDPFL_FAILPOINT")
    if wanted is None:
        return
    target, _, count = wanted.partition(":")
    if name == target:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
