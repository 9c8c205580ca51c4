"""QI-DPFL in a notebook or a script: define a task, run it, and look at what was paid, spent and learned.

Example:
    from qidpfl import Task, Testbed

    with Testbed(clients=10) as bed:
        run = bed.run(Task.from_preset("digits").with_(horizon=10))
    run.rounds, run.clients
    run.plot()
"""

from .coordinator import Coordinator
from .errors import InvalidTask, MissingExtra, QidpflError, RunFailed
from .run import Run
from .task import Task
from .testbed import Testbed

__all__ = ["Coordinator", "InvalidTask", "MissingExtra", "QidpflError", "Run", "RunFailed", "Task", "Testbed"]
