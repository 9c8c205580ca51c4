"""The repositories of all tables, inside one transaction."""

from collections.abc import Callable, Hashable

from sqlalchemy import BigInteger, Connection, String, column, select, text

from qidpfl_shared.protocol.signatures import SigningKey

from ..errors import StoreBusy
from . import schema
from .blobs import Blobs, StagedBlob
from .changes.feed import CHANNEL
from .changes.known import Change
from .prepared import Prepared
from .repositories.chain import ChainRows, Head
from .repositories.clients import ClientRows
from .repositories.credentials import ClientCredentialRows, OperatorTokenRows
from .repositories.events import EventRows
from .repositories.evidence import KeyRows, TombstoneRows
from .repositories.figures import FigureRows
from .repositories.payments import PaymentRows
from .repositories.removals import RemovalRows
from .repositories.rounds import RoundRows
from .repositories.small_blobs import SmallBlobRows
from .repositories.tasks import TaskRows
from .settled import SettledSums

_MAX_DERIVED = 256
# One statement, because two processes may insert the first row at the same time.
_INCREMENT = (
    "INSERT INTO pulse (id, changes) VALUES (1, 1)"
    " ON CONFLICT (id) DO UPDATE SET changes = pulse.changes + 1 RETURNING changes"
)
_COUNT = Prepared(text(_INCREMENT).columns(column("changes", BigInteger)))
# The same statement announces the commit, to all processes that listen, when it has happened.
_COUNT_AND_ANNOUNCE = Prepared(
    text(
        f"WITH counted AS ({_INCREMENT}) SELECT changes,"
        f" pg_notify('{CHANNEL}', CAST(changes AS text) || CAST(:words AS text)) FROM counted"
    ).columns(column("changes", BigInteger), column("announced", String))
)


class Transaction:
    """An open transaction. `touched` collects the tasks that it changes; `published` tells whether it named blobs.

    `due` collects the tasks whose next step may run after the commit, although nothing has changed for their clients.

    `derived` has what use cases keep in memory of rows that they have read. All transactions of the writer share it; a
    transaction that only reads has an empty one, and shares `settled` with the other ones that only read. `heads` has
    the heads of the chains if the writer knows that no other connection has changed the store.
    `is_only_writer` tells that no other server writes to this store.
    """

    def __init__(
        self,
        connection: Connection,
        blobs: Blobs,
        key: SigningKey | None = None,
        derived: dict[Hashable, object] | None = None,
        settled: SettledSums | None = None,
        heads: dict[str, Head] | None = None,
    ) -> None:
        self.connection = connection
        self.blobs = blobs
        self.key = key
        self.derived = {} if derived is None else derived
        self.settled = SettledSums() if settled is None else settled
        self.is_only_writer = derived is not None and connection.dialect.name == "sqlite"
        self.touched: set[str] = set()
        self.due: set[str] = set()
        self.published = False
        self.renames_files = False
        self.changes_tokens = False
        self.chain = ChainRows(connection, heads)
        self.tasks = TaskRows(connection, self.chain)
        self.clients = ClientRows(connection, self.chain)
        self.rounds = RoundRows(connection, self.chain)
        self.payments = PaymentRows(connection, self.chain)
        self.figures = FigureRows(connection, self.settled)
        self.events = EventRows(connection, self.chain)
        self.small_blobs = SmallBlobRows(connection)
        self.removals = RemovalRows(connection)
        self.operator_tokens = OperatorTokenRows(connection, self.chain)
        self.credentials = ClientCredentialRows(connection, self.chain)
        self.keys = KeyRows(connection, self.chain)
        self.tombstones = TombstoneRows(connection, self.chain)

    def saved(self) -> Callable[[], None]:
        """A function that returns to what is collected now, if the work after this moment is rolled back."""
        touched, due, changes_tokens = set(self.touched), set(self.due), self.changes_tokens
        restore_chain = self.chain.saved()

        def restore() -> None:
            self.touched, self.due, self.changes_tokens = touched, due, changes_tokens
            restore_chain()

        return restore

    def keep(self, key: Hashable, value: object) -> None:
        """Keep a value in `derived`. A full memory is emptied: everything in it can be read again."""
        if len(self.derived) >= _MAX_DERIVED:
            self.derived.clear()
        self.derived[key] = value

    def touch(self, task_id: str) -> None:
        """Record that this transaction changes a task. The commit wakes the requests that wait for it."""
        self.touched.add(task_id)

    def mark_due(self, task_id: str) -> None:
        """Record that the open round of this task is ready to settle. The commit wakes the scheduler only."""
        self.due.add(task_id)

    def touch_tokens(self) -> None:
        """Record that this transaction changes tokens of no task. Other processes then drop their cached callers."""
        self.changes_tokens = True

    @property
    def is_counted(self) -> bool:
        """Whether other processes must notice this transaction."""
        return bool(self.touched or self.due) or self.changes_tokens

    def publish(self, blob: StagedBlob) -> None:
        """Give a blob its name, or write a small one as a row. The commit makes both durable."""
        small = blob.in_memory
        if small is None:
            self.blobs.publish(blob)
            self.require_unclaimed(blob.digest)
            self.renames_files = True
        else:
            self.small_blobs.put(blob.digest, small)
            self.blobs.remember(blob.digest, small)
            blob.published = True
        self.published = True

    def require_unclaimed(self, digest: str) -> None:
        """Raise `StoreBusy` if a sweep removes this blob, or has removed it. No sweep does before the commit."""
        if not self.blobs.removes_by_claim:
            return
        is_finished = self.removals.state(digest)
        if is_finished is False or (is_finished and not self.blobs.has(digest)):
            raise StoreBusy("the same bytes, stored earlier and not used, are being removed; try again")

    def count_commit(self) -> int:
        """Increment the change counter, which other processes watch, and return it. PostgreSQL tells them at once."""
        if self.connection.dialect.name == "postgresql":
            words = Change.words(self.touched, due=bool(self.due), tokens=self.changes_tokens)
            return int(_COUNT_AND_ANNOUNCE.run(self.connection, {"words": words}).scalar())
        return int(_COUNT.run(self.connection, {}).scalar())

    def shared_folder_id(self, folder_id: str) -> str:
        """The identity of the blob folder of this store; `folder_id` if the store has none yet."""
        self.connection.execute(
            text("INSERT INTO blob_folder (id, folder_id) VALUES (1, :folder_id) ON CONFLICT (id) DO NOTHING"),
            {"folder_id": folder_id},
        )
        return str(self.connection.execute(select(schema.blob_folder.c.folder_id)).scalar_one())

    def change_counter(self) -> int:
        """The number of commits that changed a task."""
        return self.connection.execute(select(schema.pulse.c.changes)).scalar() or 0
