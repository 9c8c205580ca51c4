"""The features and labels of a task of own data: every owner prepares its records by this part of the spec.

All constants are public. None is computed from records: such a constant would be a release.
"""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ..compatibility import DATA_COLUMNS, DATA_IMAGE
from ..errors import ErrorCode
from ..fields import Choice, Message, Tuple, is_absent

# A value in a file, such as the name of a column or of a label: one line.
FileText = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Bound = Annotated[float, Field(ge=-1e30, le=1e30)]
Side = Annotated[int, Field(ge=1, le=4096)]

SET_SEPARATOR = ";"
_MAX_INPUTS = 1_000_000


class LabelKind(StrEnum):
    """How the label of a record is read: a name, a number that falls into a bin, or a set of names."""

    CLASSES = "classes"
    BINS = "bins"
    SETS = "sets"


def _refuse(message: str) -> PydanticCustomError:
    return PydanticCustomError(ErrorCode.INCONSISTENT_SPEC.value, message.replace("{", "(").replace("}", ")"))


class ColumnSpec(Message):
    """One column of a table: a number in a public range, or one of some categories.

    A number becomes one input, from -1 at `low` to 1 at `high`; a number outside counts as the nearer end. A category
    becomes one input per category: 1 for its own, 0 for the others.
    """

    name: FileText
    low: Bound | None = Field(default=None, exclude_if=is_absent)
    high: Bound | None = Field(default=None, exclude_if=is_absent)
    categories: Tuple[FileText] | None = Field(default=None, min_length=1, max_length=10_000, exclude_if=is_absent)
    missing: Bound | FileText | None = Field(
        default=None,
        exclude_if=is_absent,
        description="the number or category that replaces a missing value; null: a missing value is refused",
    )

    @model_validator(mode="after")
    def _check(self) -> "ColumnSpec":
        if self.categories is not None:
            if self.low is not None or self.high is not None:
                raise _refuse(f"column {self.name} has categories, and so neither low nor high")
            if len(set(self.categories)) != len(self.categories):
                raise _refuse(f"column {self.name} names a category twice")
            if self.missing is not None and self.missing not in self.categories:
                raise _refuse(f"missing of column {self.name} must be one of its categories")
        elif self.low is None or self.high is None or not self.low < self.high:
            raise _refuse(f"column {self.name} needs categories, or low and high with low < high")
        elif isinstance(self.missing, str):
            raise _refuse(f"missing of column {self.name} must be a number")
        return self

    @property
    def inputs(self) -> int:
        """The number of inputs of the network that this column becomes."""
        return 1 if self.categories is None else len(self.categories)


class ImageSpec(Message):
    """Images of one size. An input is pixel·scale + shift; pixels are from 0 to 255."""

    channels: Annotated[int, Field(ge=1, le=3)] = Field(default=1, description="1: grey, 3: red, green and blue")
    height: Side
    width: Side
    scale: Bound = 2 / 255
    shift: Bound = -1.0

    @model_validator(mode="after")
    def _check(self) -> "ImageSpec":
        if self.channels == 2:
            raise _refuse("an image has 1 or 3 channels")
        return self


class LabelSpec(Message):
    """The label of a record. Its place in `names` or among the bins is the number of the label."""

    column: FileText = Field(default="label", description="the column of a table, or the array of an .npz file")
    kind: Choice[LabelKind] = LabelKind.CLASSES
    names: Tuple[Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]] | None = Field(
        default=None,
        max_length=100_000,
        exclude_if=is_absent,
        description="classes: the names. sets: the sets that occur, each as names with `;` between; an empty text is"
        " the empty set",
    )
    edges: Tuple[Bound] | None = Field(
        default=None,
        min_length=1,
        max_length=99_999,
        exclude_if=is_absent,
        description="bins: the edges between the bins, ascending. A number equal to an edge is in the bin above it",
    )

    @model_validator(mode="after")
    def _check(self) -> "LabelSpec":
        is_binned = self.kind is LabelKind.BINS
        if is_binned != (self.edges is not None) or is_binned == (self.names is not None):
            raise _refuse("a label of kind bins needs edges; kinds classes and sets need names")
        if self.edges is not None and any(low >= high for low, high in pairwise(self.edges)):
            raise _refuse("the edges of the bins must ascend")
        if self.names is not None and len(set(self.shown)) != len(self.names):
            raise _refuse("two labels have the same name")
        if self.kind is LabelKind.CLASSES and "" in (self.names or ()):
            raise _refuse("a label needs a name")
        return self

    @property
    def shown(self) -> tuple[str, ...]:
        """A name for each label, as messages show it."""
        if self.edges is not None:
            middle = (f"{low:g} to {high:g}" for low, high in pairwise(self.edges))
            return (f"below {self.edges[0]:g}", *middle, f"{self.edges[-1]:g} or more")
        assert self.names is not None
        if self.kind is LabelKind.SETS:
            return tuple(canonical_set(name.split(SET_SEPARATOR)) for name in self.names)
        return self.names


class DataSpec(Message):
    """What a record of own data is: the columns of a table, or an image; and its label."""

    columns: Tuple[ColumnSpec] | None = Field(default=None, min_length=1, max_length=10_000, exclude_if=is_absent)
    image: ImageSpec | None = Field(default=None, exclude_if=is_absent)
    label: LabelSpec

    @model_validator(mode="after")
    def _check(self) -> "DataSpec":
        if (self.columns is None) == (self.image is None):
            raise _refuse("data are either columns or an image")
        names = [column.name for column in self.columns or ()]
        if len(set(names)) != len(names) or self.label.column in names:
            raise _refuse("two columns, or a column and the label, have the same name")
        if sum(column.inputs for column in self.columns or ()) > _MAX_INPUTS:
            raise _refuse(f"the columns have more than {_MAX_INPUTS} inputs")
        return self

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record as the network accepts it."""
        if self.image is not None:
            return (self.image.channels, self.image.height, self.image.width)
        assert self.columns is not None
        return (sum(column.inputs for column in self.columns),)

    @property
    def requirement(self) -> str:
        """What a client must know to prepare these data."""
        return DATA_COLUMNS if self.image is None else DATA_IMAGE


def canonical_set(names: list[str]) -> str:
    """A set of names as one text, whatever the order and the spaces.

    >>> canonical_set(["fever ", "cough"])
    'cough;fever'
    """
    return SET_SEPARATOR.join(sorted({name.strip() for name in names} - {""}))
