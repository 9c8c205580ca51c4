"""The mistakes of the final models on the test records, as text of a table, and the error that the test set adds.

Intervals over seeds say how much another seed would change an effect. All seeds share one test set, so they do not say
how much another test set would. That error is the same for any number of seeds.
"""

import base64
import math
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from .tables import MistakesRow

Flags = npt.NDArray[np.bool_]


def packed(wrong: Flags) -> str:
    """Flags as text."""
    return base64.b85encode(zlib.compress(np.packbits(wrong).tobytes(), 9)).decode("ascii")


def unpacked(row: MistakesRow) -> Flags:
    """The flags of a row: which examined records its model gets wrong."""
    bits = np.frombuffer(zlib.decompress(base64.b85decode(row.wrong)), dtype=np.uint8)
    return np.unpackbits(bits, count=row.examined).astype(np.bool_)


def error_of_records(
    first: Mapping[int, MistakesRow], second: Mapping[int, MistakesRow], seeds: Iterable[int]
) -> float | None:
    """The standard error, as a fraction, that the choice of test records adds to the mean difference of two accuracies.

    It is that of the mean over the records of each record's own difference, averaged over the seeds. None: a cell has
    no mistakes in the tables.
    """
    wanted = list(seeds)
    if not wanted or any(seed not in first or seed not in second for seed in wanted):
        return None
    pairs = [(unpacked(first[seed]), unpacked(second[seed])) for seed in wanted]
    if len({flags.size for pair in pairs for flags in pair}) != 1:
        return None
    by_record = np.mean([other.astype(np.float64) - one for one, other in pairs], axis=0)
    if by_record.size < 2:
        return None
    return float(by_record.std(ddof=1)) / math.sqrt(first[wanted[0]].tested)
