"""Starts the chains of tasks that are older than the chain. Runs once, in the transaction that migrates the store.

Every subject gets an entry of kind `adopted` with its rows as they are now: the chain shows later changes of old rows,
and nothing about the time before. One entry for the whole task would not do, because each row may still change. A
separate module because the migration needs it, and no use case does.
"""

from sqlalchemy import Connection, select

from qidpfl_shared.protocol.chain import STORE_CHAIN
from qidpfl_shared.protocol.signatures import SigningKey

from .guarded import created_fact, operator_fact, whole_task
from .repositories.chain import ChainRows
from .schema import operator_tokens, tasks

ADOPTED = "adopted"


def adopt_tasks(connection: Connection, key: SigningKey | None = None) -> None:
    """Start the chain of every task, and that of the store."""
    chain = ChainRows(connection)
    known = connection.execute(
        select(tasks.c.task_id, tasks.c.spec_digest).order_by(tasks.c.opened_at, tasks.c.task_id)
    ).all()
    for task_id, spec_digest in known:
        chain.append(STORE_CHAIN, [created_fact(task_id, spec_digest)._replace(kind=ADOPTED)])
        chain.append(task_id, (fact._replace(kind=ADOPTED) for fact in whole_task(connection, task_id)))
    operators = connection.execute(select(operator_tokens).order_by(operator_tokens.c.token_id)).all()
    chain.append(STORE_CHAIN, [operator_fact(row)._replace(kind=ADOPTED) for row in operators])
    chain.seal(key)
