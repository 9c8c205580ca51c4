"""A custom workload in forty lines: a CSV file and softmax regression.

The file beside this one holds measurements of cell nuclei and their diagnosis: the ten mean values of "Breast Cancer
Wisconsin (Diagnostic)" by Wolberg, Mangasarian, Street and Street, UCI Machine Learning Repository, CC BY 4.0. A data
owner with similar records puts them into a folder as `cells.csv` and passes this folder as the data directory.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from qidpfl_shared.workloads.records import Records
from qidpfl_shared.workloads.workload import DataMissing

DIAGNOSES = ("benign", "malignant")
# The measurements are divided by these public constants. Means and deviations computed from the records would be an
# unprotected release.
LARGEST = {
    **{"radius": 30.0, "texture": 40.0, "perimeter": 200.0, "area": 2500.0, "smoothness": 0.2, "compactness": 0.4},
    **{"concavity": 0.5, "concave_points": 0.25, "symmetry": 0.4, "fractal_dimension": 0.1},
}


class Cells:
    """Classifies cells as benign or malignant. Every fifth record is held out."""

    labels = len(DIAGNOSES)
    convex = True

    def __init__(self, *, data_dir: Path | None = None) -> None:
        self._path = (data_dir or Path(__file__).parent) / "cells.csv"

    def training(self) -> Records:
        return self._records(lambda index: index % 5 != 4)

    def held_out(self) -> Records:
        return self._records(lambda index: index % 5 == 4)

    def network(self) -> nn.Module:
        return nn.Linear(len(LARGEST), self.labels)

    def _records(self, belongs: Callable[[int], bool]) -> Records:
        try:
            with self._path.open(newline="") as file:
                rows = [row for index, row in enumerate(csv.DictReader(file)) if belongs(index)]
        except OSError as error:
            raise DataMissing(f"cannot read {self._path}: {error.strerror}") from error
        features = [[float(row[name]) / largest for name, largest in LARGEST.items()] for row in rows]
        labels = [DIAGNOSES.index(row["diagnosis"]) for row in rows]
        return Records(features=np.array(features, dtype=np.float32), labels=np.array(labels, dtype=np.int64))
