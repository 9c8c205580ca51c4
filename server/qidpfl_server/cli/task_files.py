"""Task files: `tasks init` writes a commented one from a few answers, and `tasks create --file` reads it."""

import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from qidpfl_shared.core.aggregation import Parameters
from qidpfl_shared.protocol.own_tasks import own_task
from qidpfl_shared.protocol.task_spec import DataSpec, TaskSpec

from ..errors import CoordinatorError
from ..ops.model_files import read_model_file
from ..plugins.own_models import DescribedModel, check_held_out, describe_model, find_model, name_in_task
from ..plugins.rules import RuleRegistry
from ..store.store import Store
from .options import guarded
from .task_template import LIFETIME_RHO, Answers, Column, parse_columns, parse_image, rendered

Answer = TypeVar("Answer")
_FEATURES = "the columns, with commas: age=0:110,sex=f|m; or the size of images: 28x28"
_NOT_A_KIND = (
    "data.label.kind regression is not possible: selection compares label histograms, as in the paper, and training"
    " minimises the cross entropy. Use kind bins with edges, and the model predicts the bin"
)


def read_task_file(path: Path, model: str | None) -> tuple[TaskSpec, DescribedModel | None]:
    """The task of a file, and the owners' model if it names one. Raises `CoordinatorError` or `ValidationError`."""
    try:
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CoordinatorError(f"--file: cannot read {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CoordinatorError(f"--file: {path} is not TOML: {error}") from error
    data, workload = stated.get("data"), stated.get("workload", {})
    if not isinstance(data, dict) or not isinstance(workload, dict):
        raise CoordinatorError(f"--file: {path} needs the tables [data] and [workload]; `tasks init` writes them")
    label = data.get("label")
    if isinstance(label, dict) and label.get("kind") in ("regression", "number"):
        raise CoordinatorError(_NOT_A_KIND)
    if (given := {"protocol_version", "requires"} & stated.keys()) != set():
        raise CoordinatorError(f"the coordinator sets {min(given)}: leave it out")
    described = _described(workload.get("network"), model, data)
    return own_task(stated, model=None if described is None else described.named_layout), described


def planned_from_file(
    path: Path, model: str | None, held_out: Path | None, registry: RuleRegistry
) -> tuple[TaskSpec, Parameters | None]:
    """The spec of a task file, and version 0 of its model; None: the usual one. Raises `CoordinatorError`."""
    # A model to start from is a file of numbers; an own model is a class.
    is_class = model is not None and ":" in model and not model.endswith((".safetensors", ".f32"))
    spec, described = read_task_file(path, model if is_class else None)
    registry.require(spec)
    if held_out is not None:
        for note in check_held_out(spec, held_out):
            print(f"note: {note}", file=sys.stderr)
    if model is not None and not is_class:
        return spec, read_model_file(Path(model), spec)
    return spec, None if described is None else described.start(spec)


def say_how_to_serve(spec: TaskSpec, model: str | None, held_out: Path | None) -> None:
    """Say with which options the coordinator evaluates the task, and what an owner types."""
    own = f" --model {model}" if ":" in spec.workload.network else ""
    shown = held_out or "FILE"
    print(f"note: serve --held-out {spec.workload.dataset}={shown}{own} evaluates its rounds", file=sys.stderr)
    print(
        f"note: give each owner one code; it runs qidpfl-client run --server URL --code-file CODE --data FILE{own}",
        file=sys.stderr,
    )
    horizon, rho_max = spec.game.horizon, spec.bounds.rho_max
    if spec.privacy.noise and horizon * rho_max > LIFETIME_RHO:
        print(
            f"note: {horizon} rounds at rho_max {rho_max:g} are rho {horizon * rho_max:.3g}, and an owner without"
            f" --lifetime-rho spends {LIFETIME_RHO:g} in all: at rho_max it stops after {int(LIFETIME_RHO / rho_max)}"
            " rounds. Lower horizon or rho_max, or agree on a limit",
            file=sys.stderr,
        )


def held_out_files(given: list[str]) -> dict[str, Path]:
    """The files of `serve --held-out NAME=FILE`. Raises `CoordinatorError` if one is not there."""
    files: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise CoordinatorError(f"--held-out {text!r} must be NAME=FILE, with the name of the data in the task file")
        if not Path(path).exists():
            raise CoordinatorError(f"--held-out: there is no file or folder {path}")
        files[name] = Path(path)
    return files


def note_unused_files(store: Store, files: Mapping[str, Path]) -> None:
    """Say which names of `serve --held-out` no task has: a mistyped name would leave its rounds unevaluated."""
    tasks = store.read(lambda tx: tx.tasks.all())
    known = {task.spec.workload.dataset for task in tasks if task.spec.data is not None}
    for name in sorted(set(files) - known):
        has = f"; the tasks have {', '.join(sorted(known))}" if known else ""
        print(f"note: --held-out {name}: no task of own data has data of this name{has}", file=sys.stderr)


def checked_models(given: list[str]) -> list[str]:
    """The models of `serve --model`, once they can be imported. Raises `CoordinatorError`."""
    for name in given:
        find_model(name)
    return given


def _described(network: object, model: str | None, data: dict[str, Any]) -> DescribedModel | None:
    is_own = isinstance(network, str) and ":" in network
    if model is None and is_own:
        raise CoordinatorError(f"the file names the owners' own model {network}: add --model path/to/FILE.py:Class")
    if model is None:
        return None
    if not is_own or name_in_task(model) != network:
        raise CoordinatorError(
            f"the file names the network {network}, and --model is {name_in_task(model)}: write the latter into it"
        )
    return describe_model(model, DataSpec.model_validate(data))


@guarded
def init_command(
    file: Annotated[Path, typer.Argument(help="the task file to write, e.g. triage.toml")],
    column: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH (a number in a public range) or NAME=A|B|C (categories); repeatable"),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="instead of columns: images of WIDTHxHEIGHT (grey) or WIDTHxHEIGHTx3 (colour)")
    ] = None,
    label: Annotated[str | None, typer.Option(help="the column of the label  [default: label]")] = None,
    labels: Annotated[str | None, typer.Option(help="the names of the labels, with commas")] = None,
    bins: Annotated[str | None, typer.Option(help="instead, for a number: the edges between bins, with commas")] = None,
    label_sets: Annotated[
        str | None, typer.Option(help="instead, for several labels per record: the sets, 'a,a;b,b'")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="linear, mlp, lenet (images), or FILE.py:Class of the owners' own model")
    ] = None,
    hidden: Annotated[
        str | None, typer.Option(help="network mlp: the widths of its hidden layers, with commas")
    ] = None,
    owners: Annotated[int | None, typer.Option(min=2, max=1000, help="how many owners will take part")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=100_000, help="how many rounds")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
) -> None:
    """Write a commented task file for own data.

    On a terminal it asks for what the options do not say, and asks again after an impossible answer.
    """
    if file.exists() and not force:
        raise CoordinatorError(f"{file} exists; --force replaces it")
    if column and image:
        raise CoordinatorError("give --column or --image, not both")
    if sum(given is not None for given in (labels, bins, label_sets)) > 1:
        raise CoordinatorError("give one of --labels, --bins and --label-sets")
    features = Features.of(column, image) if column or image else _asked(_FEATURES, "--column age=0:110", Features.read)
    asks_all = not column and image is None
    if asks_all and label is None:
        label = _asked("the column of the label", "--label NAME", _word, default="label")
    if labels is None and bins is None and label_sets is None:
        labels = _asked("the names of the labels, with commas", "--labels A,B", _several)
    if asks_all and network is None:
        network = _asked(
            "the network: linear, mlp, lenet, or FILE.py:Class", "--network NAME", _network, default="linear"
        )
    if owners is None:
        owners = _asked("how many owners take part", "--owners 3", _whole(2, 1000), default="3")
    if asks_all and rounds is None:
        rounds = _asked("how many rounds", "--rounds 20", _whole(1, 100_000), default="20")
    answers = Answers(
        name=file.stem,
        columns=features.columns,
        image=features.image,
        label=label or "label",
        labels=_split(labels) or (_split(label_sets, keep_empty=True) if label_sets is not None else ()),
        sets=label_sets is not None,
        bins=_numbers("--bins", bins),
        network=network or "linear",
        hidden=tuple(int(width) for width in _numbers("--hidden", hidden or ("32" if network == "mlp" else None))),
        owners=owners,
        rounds=rounds or 20,
    )
    text = rendered(answers)
    _check(text)
    file.write_text(text, encoding="utf-8")
    model = f" --model {network}" if network is not None and ":" in network else ""
    print(f"{file} is written; read it, then: qidpfl-server tasks create {file.stem} --file {file}{model}")


def _check(text: str) -> None:
    """Refuse answers that are no task. The layout of an own model is not known here."""
    stated = tomllib.loads(text)
    if ":" in stated["workload"]["network"]:
        stated["workload"]["network"] = "linear"
    own_task(stated)


class Features(NamedTuple):
    """What a record consists of: columns, or an image of this width, height and number of channels."""

    columns: tuple[Column, ...]
    image: tuple[int, int, int] | None

    @classmethod
    def of(cls, columns: list[str] | None, image: str | None) -> "Features":
        """Those that options state. Raises `CoordinatorError`."""
        return cls(parse_columns(columns or []), None if image is None else parse_image(image))

    @classmethod
    def read(cls, answer: str) -> "Features":
        """Those that an answer states. Raises `CoordinatorError`."""
        if "=" in answer:
            return cls.of(list(_split(answer)), None)
        if answer[:1].isdecimal():
            return cls.of(None, answer)
        raise CoordinatorError("it must be columns such as age=0:110,sex=f|m or a size such as 28x28")


def _asked(question: str, option: str, read: Callable[[str], Answer], *, default: str | None = None) -> Answer:
    """The answer to a question, or the default where there is no terminal. An impossible answer is asked for again."""
    if not sys.stdin.isatty():
        if default is None:
            raise CoordinatorError(f"say {question}: {option}")
        return read(default)
    while True:
        try:
            return read(str(typer.prompt(question, default=default)).strip())
        except CoordinatorError as error:
            print(error)


def _word(answer: str) -> str:
    if not answer:
        raise CoordinatorError("a name is needed")
    return answer


def _several(answer: str) -> str:
    if len(_split(answer)) < 2:
        raise CoordinatorError("at least two names are needed, with commas between")
    return answer


def _network(answer: str) -> str:
    if answer not in ("linear", "mlp", "lenet") and ":" not in answer:
        raise CoordinatorError("it must be linear, mlp, lenet, or FILE.py:Class")
    return answer


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(answer: str) -> int:
        if not answer.isdecimal() or not least <= int(answer) <= most:
            raise CoordinatorError(f"it must be a whole number from {least} to {most}")
        return int(answer)

    return read


def _split(text: str | None, *, keep_empty: bool = False) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in (text or "").split(",")) if text is not None else ()
    return parts if keep_empty else tuple(part for part in parts if part)


def _numbers(option: str, text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _split(text))
    except ValueError:
        raise CoordinatorError(f"{option} must be numbers with commas between, not {text!r}") from None
