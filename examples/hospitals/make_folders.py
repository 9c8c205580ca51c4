"""Write the folders of three made-up hospitals, and a file of the operator to evaluate on.

    python examples/hospitals/make_folders.py FOLDER

No real patient is in them. Each hospital has patients of its own: another number, other ages, other shares of severe
cases, and files of its own form. What they have in common is how the measurements depend on how ill a patient is. The
same call always writes the same files.
"""

import csv
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("age", "sex", "heart_rate", "pressure", "temperature", "breaths", "oxygen")
Patient = dict[str, str]


@dataclass(frozen=True)
class Hospital:
    """Who comes to a hospital: how many, how old, how ill, and a seed."""

    patients: int
    age: tuple[float, float]
    illness: tuple[float, float]
    seed: int


CITY = Hospital(patients=1400, age=(48, 20), illness=(0.9, 0.9), seed=1)
VALLEY = Hospital(patients=900, age=(68, 12), illness=(1.3, 0.8), seed=2)
HARBOUR = Hospital(patients=600, age=(35, 14), illness=(1.1, 1.1), seed=3)
# The operator's own file is a mixture that no hospital has seen.
OPERATOR = Hospital(patients=1000, age=(52, 22), illness=(1.1, 1.0), seed=4)


def patients_of(hospital: Hospital) -> list[Patient]:
    """The patients of a hospital, each with the measurements at the door and where it went: home, ward or intensive."""
    source = random.Random(hospital.seed)
    return [_patient(source, hospital) for _ in range(hospital.patients)]


def _patient(source: random.Random, hospital: Hospital) -> Patient:
    age = min(100.0, max(18.0, source.gauss(*hospital.age)))
    illness = max(0.0, source.gauss(*hospital.illness)) + (age - 50) / 100
    if illness + source.gauss(0, 0.15) < 0.9:
        went_to = "home"
    else:
        went_to = "ward" if illness + source.gauss(0, 0.15) < 1.8 else "intensive"
    return {
        "age": f"{age:.0f}",
        "sex": source.choice("fm"),
        "heart_rate": f"{source.gauss(72 + 18 * illness, 9):.0f}",
        "pressure": f"{source.gauss(132 - 16 * illness, 10):.0f}",
        "temperature": f"{source.gauss(36.6 + 0.7 * illness, 0.4):.1f}",
        "breaths": f"{source.gauss(14 + 5 * illness, 2):.0f}",
        "oxygen": f"{min(100.0, source.gauss(98.5 - 3.5 * illness, 1.2)):.0f}",
        "went_to": went_to,
    }


def write(path: Path, patients: Sequence[Patient], renamed: dict[str, str] | None = None) -> None:
    """Write patients as a CSV file; some columns may have names of the hospital's own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {name: (renamed or {}).get(name, name) for name in (*COLUMNS, "went_to")}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", *names.values()])
        writer.writerows([number, *(patient[name] for name in names)] for number, patient in enumerate(patients, 1))


def main(folder: Path) -> None:
    """Write all files below a folder."""
    write(folder / "city" / "visits.csv", patients_of(CITY))
    # Valley calls intensive care icu.
    valley = [{**one, "went_to": one["went_to"].replace("intensive", "icu")} for one in patients_of(VALLEY)]
    write(folder / "valley" / "visits.csv", valley)
    # Harbour has one file per half-year, and its own name for a column.
    harbour = patients_of(HARBOUR)
    for half, part in enumerate((harbour[:250], harbour[250:]), 1):
        write(folder / "harbour" / f"visits-{half}.csv", part, {"heart_rate": "pulse"})
    write(folder / "operator" / "held-out.csv", patients_of(OPERATOR))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
