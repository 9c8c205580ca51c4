"""The text of a new task file: TOML with comments that say what each value means and when to change it."""

import json
from dataclasses import dataclass

from ..errors import CoordinatorError
from ..plugins.own_models import name_in_task

# What a client spends over the life of its records if its owner sets no limit, and what a new task file uses of it. The
# rest is for the label histogram.
LIFETIME_RHO = 0.2
_USED_RHO = 0.16

Column = tuple[str, tuple[float, float] | tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the operator has answered."""

    name: str
    columns: tuple[Column, ...]
    image: tuple[int, int, int] | None
    label: str
    labels: tuple[str, ...]
    sets: bool
    bins: tuple[float, ...]
    network: str
    hidden: tuple[int, ...]
    owners: int
    rounds: int


def parse_columns(texts: list[str]) -> tuple[Column, ...]:
    """The columns of options such as `age=0:110` and `sex=f|m`. Raises `CoordinatorError`.

    >>> parse_columns(["age=0:110", "sex=f|m"])
    (('age', (0.0, 110.0)), ('sex', ('f', 'm')))
    """
    return tuple(_column(text) for text in texts)


def _column(text: str) -> Column:
    name, _, values = text.partition("=")
    low, colon, high = values.partition(":")
    if name and "|" in values:
        return name, tuple(values.split("|"))
    try:
        if name and colon:
            return name, (float(low), float(high))
    except ValueError:
        pass
    raise CoordinatorError(f"--column {text!r} must be NAME=LOW:HIGH or NAME=A|B|C")


def parse_image(text: str) -> tuple[int, int, int]:
    """Width, height and channels of an option such as `28x28` or `32x32x3`. Raises `CoordinatorError`.

    >>> parse_image("32x24x3")
    (32, 24, 3)
    """
    parts = text.lower().split("x")
    if len(parts) not in (2, 3) or not all(part.isdigit() for part in parts):
        raise CoordinatorError(f"--image {text!r} must be WIDTHxHEIGHT or WIDTHxHEIGHTx3")
    width, height, channels = (*map(int, parts), 1)[:3]
    return width, height, channels


def rendered(answers: Answers) -> str:
    """The text of the task file."""
    return "\n".join((_head(answers), _workload(answers), _label(answers), _features(answers), _rest(answers)))


def _head(answers: Answers) -> str:
    model = f" --model {answers.network}" if ":" in answers.network else ""
    return f"""\
# A federated task on the owners' own data. Create it with
#     qidpfl-server tasks create {answers.name} --file {answers.name}.toml{model}
# The tables have the structure of the spec (docs/operator-api.md); values that are left out are the defaults.
# A task never changes after it is created, and every owner pins the digest of its spec.
"""


def _workload(answers: Answers) -> str:
    own = ":" in answers.network
    network = name_in_task(answers.network) if own else answers.network
    hidden = f"hidden = {list(answers.hidden)}  # the widths of the hidden layers\n" if network == "mlp" else ""
    said = (
        f"# The owners' own model: every owner has the same file and names it with --model {answers.network}"
        if own
        else "# linear: softmax regression. mlp: hidden layers with tanh. lenet: images. Or module:Class, your own"
    )
    return f"""\
[workload]
dataset = {_text(answers.name)}  # a name for these data; `serve --held-out {answers.name}=FILE` evaluates on a file
{said}
network = {_text(network)}
{hidden}"""


def _label(answers: Answers) -> str:
    if answers.bins:
        kind = f"""kind = "bins"  # the label is a number; the model predicts its bin
edges = {list(answers.bins)}  # a number equal to an edge is in the bin above it"""
    elif answers.sets:
        kind = f"""kind = "sets"  # a record has a set of labels; each set that occurs is one label of the task
names = {_texts(answers.labels)}"""
    else:
        kind = f"""kind = "classes"  # or "bins" (edges) for a number, "sets" for several labels per record
names = {_texts(answers.labels)}  # an owner maps other names with --label-name YOURS=THESE"""
    return f"""\
[data.label]
column = {_text(answers.label)}
{kind}
"""


def _features(answers: Answers) -> str:
    if answers.image is not None:
        width, height, channels = answers.image
        return f"""\
# Images of exactly this size; an input is pixel * scale + shift.
[data.image]
width = {width}
height = {height}
channels = {channels}
"""
    parts = [
        "# Every owner's table has these columns; others are not used. A number becomes -1 at low and 1 at high. Take"
        "\n# the range from public knowledge, never from records. missing = VALUE says what a missing value counts as;"
        "\n# without it an owner with missing values is refused.\n"
    ]
    for name, values in answers.columns:
        if values and isinstance(values[0], str):
            body = f"categories = {_texts(tuple(map(str, values)))}"
        else:
            low, high = values
            body = f"low = {low:g}\nhigh = {high:g}"
        parts.append(f"[[data.columns]]\nname = {_text(name)}\n{body}\n")
    return "\n".join(parts)


def _rest(answers: Answers) -> str:
    return f"""\
[game]
horizon = {answers.rounds}  # rounds; if you change it, divide rho_max below by the same factor

[rounds]
expected_clients = {answers.owners}  # training starts when so many owners are ready
min_clients = {answers.owners}
min_updates = {min(answers.owners, max(2, answers.owners - 1))}  # a round settles with so many updates
enrolment_window_s = 86400  # or after this time, if min_clients are ready
quiet_s = 86400

# "all" takes every owner. "threshold" takes owners whose labels are near a reference (docs/operator-api.md).
[selection]
rule = "all"

# A step of the coordinator along the mean update. Lower the rate if the accuracy jumps up and down.
[aggregation]
learning_rate = 1.0
momentum = 0.8

# Money is in micro-units: 1_000_000 is one unit.
[bounds]
reward_max_micro = 100_000_000  # the most that a round may pay
reward_total_micro = {100_000_000 * answers.rounds:_}  # the most that the task may pay
# The most privacy that an owner can sell in a round (zCDP). Keep horizon * rho_max at {_USED_RHO:g} or below: without
# --lifetime-rho, an owner spends {LIFETIME_RHO:g} in all tasks together, label histograms included.
rho_max = {_USED_RHO / answers.rounds:.6g}
rho_min = {_USED_RHO / answers.rounds / 1000:.6g}
"""


def _text(value: str) -> str:
    # A JSON string is a TOML string.
    return json.dumps(value, ensure_ascii=False)


def _texts(values: tuple[str, ...]) -> str:
    return f"[{', '.join(_text(value) for value in values)}]"
