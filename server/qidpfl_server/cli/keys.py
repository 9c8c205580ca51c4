"""The commands under `keys`: show the public keys of the coordinator, and replace the signing key."""

from typing import Annotated

import typer

from qidpfl_shared.protocol.signatures import PublicKeyInfo

from ..ops.open_store import opened_store
from ..ops.signing import rotate_key
from ..store.database import exclusive
from .display.task_lists import AsJson, print_json
from .options import Where, guarded, located

keys_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show the public keys, replace the signing key."
)


@keys_app.command("list")
@guarded
@located
def list_command(where: Where, as_json: AsJson = False) -> None:
    """List the public keys, oldest first: id, key, date and who endorsed it. The last one signs."""
    with opened_store(where.settings()) as store:
        known = store.read(lambda tx: tx.keys.all()).keys
    if as_json:
        print_json([key.model_dump(mode="json") for key in known])
        return
    for key in known:
        _print(key)


@keys_app.command("rotate")
@guarded
@located
def rotate_command(
    where: Where,
    lost: Annotated[
        bool, typer.Option("--lost", help="the old key is lost: nothing endorses the new one, and clients refuse it")
    ] = False,
) -> None:
    """Replace the signing key by a new one, which the old one endorses.

    Stop all coordinators of the store first, and give the new file to all of them. Clients accept the new key without
    any action.
    """
    settings = where.settings()
    with opened_store(settings) as store, exclusive(store.engine):
        key, path = rotate_key(settings, store, lost=lost)
    _print(key)
    print(f"written to {path}")


def _print(key: PublicKeyInfo) -> None:
    endorsed = "not endorsed" if key.endorsement is None else f"endorsed by {key.endorsement.key_id}"
    print(key.key_id, key.public_key, key.created_at.isoformat(), endorsed, sep="\t")
