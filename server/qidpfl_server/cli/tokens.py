"""The commands under `tokens`: create, list, revoke and rotate the tokens of operators, live or stopped."""

from typing import Annotated

import typer
from rich.console import Console

from qidpfl_shared.command_line import output_width
from qidpfl_shared.protocol.credentials import CreateOperatorToken, OperatorRole, OperatorTokenInfo, RotateOperatorToken

from ..ops.open_store import opened_store
from ..service.credentials import (
    create_operator_token,
    operator_tokens,
    revoke_operator_token,
    rotate_operator_token,
)
from .display.task_lists import AsJson, print_json, print_table
from .options import Where, guarded, located
from .tasks import task_named, valid_name

tokens_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list, revoke and rotate tokens of operators."
)

_DAY_S = 86_400.0
TokenId = Annotated[str, typer.Argument(metavar="ID", help="id of the token, as `tokens list` shows it")]
Days = Annotated[
    float | None, typer.Option(help="days until the token expires, at most 365  [default: no end]", min=0, max=365)
]


@tokens_app.command("create")
@guarded
@located
def create_command(
    where: Where,
    name: Annotated[str, typer.Argument(help="whose token it is; lists and logs show it")],
    role: Annotated[OperatorRole, typer.Option(help="an admin may do everything, a viewer only reads")],
    task: Annotated[
        str | None, typer.Option(help="name or id of the only task that it is for  [default: all tasks]")
    ] = None,
    days: Days = None,
) -> None:
    """Create a token with a role, for one task or for all tasks.

    Prints its id, then the token. The token cannot be shown again later.
    """
    name = valid_name(name)
    with opened_store(where.settings()) as store:
        task_id = None if task is None else store.read(lambda tx: task_named(tx, task)).task_id
        request = CreateOperatorToken(name=name, role=role, task_id=task_id, valid_s=_seconds(days))
        now = store.now()
        created = store.write(lambda tx: create_operator_token(tx, request, now))
    print(created.info.token_id)
    print(created.token)


@tokens_app.command("list")
@guarded
@located
def list_command(where: Where, as_json: AsJson = False) -> None:
    """List all tokens that were created here, oldest first, also revoked ones; never the tokens themselves.

    On a terminal a table; else id, name, role, task and state, separated by tabs; or JSON. The admin and viewer tokens
    in the state folder are not listed.
    """
    with opened_store(where.settings()) as store:
        now = store.now()
        known = store.read(lambda tx: operator_tokens(tx, now))
    if as_json:
        print_json([one.model_dump(mode="json") for one in known])
        return
    console = Console(width=output_width())
    rows = [(one.token_id, one.name, one.role.value, one.task_id or "all tasks", _state(one, now)) for one in known]
    if not console.is_terminal:
        for row in rows:
            print(*row, sep="\t")
        return
    # The name comes first, because it may be folded; the others stay whole.
    print_table(console, ("name", "id", "role", "task", "state"), [(row[1], row[0], *row[2:]) for row in rows])


@tokens_app.command("revoke")
@guarded
@located
def revoke_command(where: Where, token_id: TokenId) -> None:
    """Revoke a token. A running coordinator refuses it within about a second."""
    with opened_store(where.settings()) as store:
        now = store.now()
        store.write(lambda tx: revoke_operator_token(tx, token_id, now))
    print(f"{token_id} is revoked")


@tokens_app.command("rotate")
@guarded
@located
def rotate_command(
    where: Where,
    token_id: TokenId,
    overlap: Annotated[
        float, typer.Option(help="seconds for which the old token stays valid", min=0, max=2_592_000)
    ] = 3600.0,
    days: Days = None,
) -> None:
    """Replace a token. Prints the new one, which cannot be shown again later."""
    request = RotateOperatorToken(overlap_s=overlap, valid_s=_seconds(days))
    with opened_store(where.settings()) as store:
        now = store.now()
        rotated = store.write(
            lambda tx: rotate_operator_token(
                tx, token_id, overlap_s=request.overlap_s, valid_s=request.valid_s, now=now
            )
        )
    print(rotated.token)


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * _DAY_S


def _state(token: OperatorTokenInfo, now: int) -> str:
    if token.revoked_at is not None:
        return f"revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "valid"
    expired = token.expires_at.timestamp() * 1e6 <= now
    return f"{'expired' if expired else 'valid until'} {token.expires_at:%Y-%m-%d %H:%M}"
