"""What can be read and written inside one transaction, by subject."""

from sqlalchemy import Connection, select, text

from . import schema
from .blobs import Blobs, StagedBlob
from .repositories.clients import ClientRows
from .repositories.events import EventRows
from .repositories.rounds import RoundRows
from .repositories.tasks import TaskRows


class Transaction:
    """One open transaction. `touched` collects the tasks it changes, `published` whether blobs got their names."""

    def __init__(self, connection: Connection, blobs: Blobs) -> None:
        self.connection = connection
        self.blobs = blobs
        self.touched: set[str] = set()
        self.published = False
        self.tasks = TaskRows(connection)
        self.clients = ClientRows(connection)
        self.rounds = RoundRows(connection)
        self.events = EventRows(connection)

    def touch(self, task_id: str) -> None:
        """Say that this transaction changes a task, so that whoever waits for it is woken."""
        self.touched.add(task_id)

    def publish(self, blob: StagedBlob) -> None:
        """Give a blob its name together with this transaction."""
        self.blobs.publish(blob)
        self.published = True

    def count_commit(self) -> None:
        """Increment the change counter, which other processes watch."""
        # One statement: two processes may both be the first.
        self.connection.execute(
            text(
                "INSERT INTO pulse (id, changes) VALUES (1, 1)"
                " ON CONFLICT (id) DO UPDATE SET changes = pulse.changes + 1"
            )
        )

    def change_counter(self) -> int:
        """How many changing commits there have been."""
        return self.connection.execute(select(schema.pulse.c.changes)).scalar() or 0
