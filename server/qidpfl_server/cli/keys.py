"""The commands under `keys`: show the public keys, make shared secrets, replace the signing key."""

from pathlib import Path
from typing import Annotated

import typer

from qidpfl_shared.protocol.signatures import PublicKeyInfo, SigningKey

from ..ops.open_store import opened_store
from ..ops.signing import rotate_key
from ..ops.tokens import create_private, create_shared_code, create_tokens
from ..store.database import exclusive
from .display.task_lists import AsJson, print_json
from .options import Where, guarded, located

keys_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Show the public keys, make secrets, replace the signing key."
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


@keys_app.command("new")
@guarded
def new_command(
    out: Annotated[Path, typer.Option(help="folder to write to; files that exist stay as they are")],
    code: Annotated[
        Path | None, typer.Option(help="also write an enrolment code to this file, for QIDPFL_SHARED_CODE")
    ] = None,
) -> None:
    """Make the secrets that all coordinators of one store share: both tokens and a signing key.

    The folder is for QIDPFL_SECRETS_DIR, as it is or as a mounted secret. Prints the files that are new.
    """
    made = list(create_tokens(out))
    key = out / "signing.key"
    if create_private(key, SigningKey.new().pem()):
        made.append(key)
    if code is not None and create_shared_code(code):
        made.append(code)
    for path in made:
        print(path)


def _print(key: PublicKeyInfo) -> None:
    endorsed = "not endorsed" if key.endorsement is None else f"endorsed by {key.endorsement.key_id}"
    print(key.key_id, key.public_key, key.created_at.isoformat(), endorsed, sep="\t")
