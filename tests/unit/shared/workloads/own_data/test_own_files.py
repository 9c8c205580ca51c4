"""Own data in every form become the same records; what does not fit is one line that says what to do."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from qidpfl_shared.protocol.task_spec import DataSpec
from qidpfl_shared.workloads.own_data.reading import OwnFiles, OwnRecords, read_own_data
from qidpfl_shared.workloads.workload import DataMismatch, DataMissing, LabelMismatch, WorkloadError

TABLE = DataSpec.model_validate(
    {
        "columns": [{"name": "age", "low": 0, "high": 100}, {"name": "sex", "categories": ["f", "m"]}],
        "label": {"column": "outcome", "names": ["home", "ward"]},
    }
)
IMAGES = DataSpec.model_validate({"image": {"width": 4, "height": 3}, "label": {"names": ["cat", "dog"]}})
CSV = "age,sex,outcome,street\n50,f,home,a\n100,m,Ward,b\n0,m,home,c\n"
INPUTS = [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]
COLUMNS = {"age": [50, 100, 0], "sex": ["f", "m", "m"], "outcome": ["home", "ward", "home"]}


def read(path: Path, spec: DataSpec = TABLE, **renamed: Any) -> OwnRecords:
    return read_own_data(OwnFiles(path=path, **renamed), spec)


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, spec: DataSpec = TABLE, **renamed: Any) -> str:
    with pytest.raises(WorkloadError) as refused:
        read(path, spec, **renamed)
    message = str(refused.value)
    assert "\n" not in message
    return message


def assert_the_three(own: OwnRecords) -> None:
    assert own.records.inputs().tolist() == INPUTS
    assert own.records.labels.tolist() == [0, 1, 0]


def test_a_csv_file_becomes_scaled_records_and_unused_columns_are_said(tmp_path: Path) -> None:
    own = read(csv_file(tmp_path, CSV))
    assert_the_three(own)
    assert own.notes == ("not used: the columns street",)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_csv_file_may_have_another_delimiter_a_mark_and_be_compressed(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(gzip.compress(("\ufeff" + CSV.replace(",", delimiter)).encode()))
    assert_the_three(read(path))


def test_all_files_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("age,sex,outcome\n50,f,home\n")
    (tmp_path / "2.csv").write_text("outcome,sex,age\nward,m,100\nhome,m,0\n")
    assert_the_three(read(tmp_path))


def test_a_parquet_file_gives_the_same_records(tmp_path: Path) -> None:
    parquet.write_table(pa.table(COLUMNS | {"street": ["a", "b", "c"]}), tmp_path / "mine.parquet")
    own = read(tmp_path / "mine.parquet")
    assert_the_three(own)
    assert own.notes == ("not used: the columns street",)


def saved_data_set(folder: Path, table: pa.Table, features: dict[str, Any]) -> Path:
    """A folder as `datasets.Dataset.save_to_disk` writes it."""
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return folder


def test_a_data_set_of_hugging_face_gives_the_same_records(tmp_path: Path) -> None:
    # The numbers of its labels are those of its own list of names, not of the task's.
    table = pa.table(COLUMNS | {"outcome": [1, 0, 1]})
    features = {
        "age": {"dtype": "int64", "_type": "Value"},
        "sex": {"dtype": "string", "_type": "Value"},
        "outcome": {"names": ["ward", "home"], "_type": "ClassLabel"},
    }
    saved_data_set(tmp_path / "all" / "train", table, features)
    assert_the_three(read(tmp_path / "all" / "train"))
    (tmp_path / "all" / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    assert_the_three(read(tmp_path / "all"))


def test_an_npz_file_has_places_or_names_as_labels(tmp_path: Path) -> None:
    spec = DataSpec.model_validate(
        {
            "columns": [{"name": "a", "low": -1, "high": 1}, {"name": "b", "low": 0, "high": 2}],
            "label": {"column": "y", "names": ["home", "ward"]},
        }
    )
    values = np.array([[0.5, 1.0], [-1.0, 2.0]])
    for labels in (np.array([1, 0]), np.array(["ward", "home"])):
        np.savez(tmp_path / "mine.npz", x=values, y=labels)
        own = read(tmp_path / "mine.npz", spec)
        assert own.records.inputs().tolist() == [[0.5, 0.0], [-1.0, 1.0]]
        assert own.records.labels.tolist() == [1, 0]


def test_an_npz_file_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", features=np.array([{"a": 1}], dtype=object), outcome=np.array(["home"]))
    assert "pickled objects" in refusal(tmp_path / "mine.npz")


def image_folder(folder: Path, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> Path:
    for number, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, 255 * number if mode == "L" else (255 * number,) * 3).save(folder / name / "one.png")
    return folder


def test_a_folder_of_images_has_a_folder_for_each_label(tmp_path: Path) -> None:
    own = read(image_folder(tmp_path), IMAGES)
    assert own.records.features.shape == (2, 1, 3, 4)
    assert own.records.labels.tolist() == [0, 1]
    assert own.records.inputs()[:, 0, 0, 0].tolist() == [-1.0, 1.0]


def test_images_of_hugging_face_and_of_numpy_are_the_same_records(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "folder", mode="L")
    wanted = read(folder, IMAGES).records
    cells = [{"bytes": (folder / name / "one.png").read_bytes(), "path": None} for name in ("cat", "dog")]
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    saved = saved_data_set(tmp_path / "saved", pa.table({"image": cells, "label": [0, 1]}), features)
    np.savez(tmp_path / "mine.npz", images=wanted.features[:, 0], label=np.array(["cat", "dog"]))
    for path in (saved, tmp_path / "mine.npz"):
        found = read(path, IMAGES).records
        assert np.array_equal(found.features, wanted.features) and found.labels.tolist() == [0, 1]


def test_wrong_label_names_are_one_line_with_the_tasks_names_and_the_remedy(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "age,sex,outcome\n1,f,ICU\n2,m,home\n3,m,ICU\n")
    message = refusal(path)
    assert message.startswith("mine.csv line 2:") and "ICU (2)" in message
    assert "home, ward" in message and "--label-name" in message
    assert read(path, labels={"ICU": "ward"}).records.labels.tolist() == [1, 0, 1]
    with pytest.raises(LabelMismatch, match="has no label 'garage'"):
        read(path, labels={"ICU": "garage"})


def test_wrong_columns_are_one_line_with_those_that_are_there(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "years,sex,outcome\n1,f,home\n")
    assert "lacks the column age; it has years, sex, outcome" in refusal(path)
    assert len(read(path, columns={"years": "age"}).records) == 1
    unknown = "--column year=age: mine.csv has no column 'year'; leave it out, or correct it"
    assert unknown in refusal(path, columns={"years": "age", "year": "age"})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (",f,home", "line 3: column 'age': 1 value is missing"),
        ("NaN,f,home", "line 3: column 'age': 1 value is missing"),
        ("inf,f,home", "line 3: column 'age' is infinite"),
        ("old,f,home", "line 3: column 'age' is 'old', not a number"),
        ("1,x,home", "line 3: column 'sex' has x (1); the task's categories are f, m"),
        ("1,,home", "line 3: column 'sex': 1 value is missing"),
        ("1,f,", "no label (1)"),
        ("1,f", "line 3 has 2 values, but there are 3 columns"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line_with_its_place(tmp_path: Path, row: str, said: str) -> None:
    assert said in refusal(csv_file(tmp_path, f"age,sex,outcome\n1,f,home\n{row}\n"))


def test_a_missing_value_counts_as_what_the_task_says(tmp_path: Path) -> None:
    spec = DataSpec.model_validate(
        {
            "columns": [
                {"name": "age", "low": 0, "high": 100, "missing": 50},
                {"name": "sex", "categories": ["f", "m"], "missing": "m"},
            ],
            "label": {"column": "outcome", "names": ["home", "ward"]},
        }
    )
    own = read(csv_file(tmp_path, "age,sex,outcome\nNA,,home\n"), spec)
    assert own.records.inputs().tolist() == [[0.0, 0.0, 1.0]]
    assert len(own.notes) == 2


def test_values_of_another_unit_are_refused_and_few_outside_are_said(tmp_path: Path) -> None:
    assert "does your file use the task's unit?" in refusal(csv_file(tmp_path, "age,sex,outcome\n640,f,home\n"))
    own = read(csv_file(tmp_path, "age,sex,outcome\n640,f,home\n5,f,home\n"))
    assert own.records.inputs()[0, 0] == 1.0 and "1 of 2 values are outside" in own.notes[0]


def test_images_of_another_size_are_one_line_with_the_size_and_a_command(tmp_path: Path) -> None:
    message = refusal(image_folder(tmp_path, size=(8, 8)), IMAGES)
    assert "cat/one.png is 8x8, but the task takes 4x3" in message and "mogrify" in message


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    (image_folder(tmp_path) / "dog" / "two.png").write_bytes(b"not an image")
    assert "dog/two.png is not a readable image" in refusal(tmp_path, IMAGES)


@pytest.mark.parametrize("spec", [TABLE, IMAGES])
def test_an_empty_folder_is_one_line(tmp_path: Path, spec: DataSpec) -> None:
    assert "is empty; give a CSV" in refusal(tmp_path, spec)


def test_what_is_not_there_or_of_another_kind_is_one_line(tmp_path: Path) -> None:
    assert "there is no file or folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "notes.docx").write_text("x")
    assert "has a form that is not known" in refusal(tmp_path / "notes.docx")
    assert "has no data in it" in refusal(tmp_path)
    assert "the task takes images" in refusal(csv_file(tmp_path, CSV), IMAGES)
    assert "the task takes a table, and pictures has images" in refusal(image_folder(tmp_path / "pictures"))


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("age,sex,outcome\n", "has no records")])
def test_a_file_without_records_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataMissing, match=said):
        read(csv_file(tmp_path, text))


def test_a_file_that_is_no_text_or_a_damaged_one_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(b"age,sex,outcome\n\xff\xfe,f,home\n")
    assert "not a text in UTF-8" in refusal(tmp_path / "mine.csv")
    (tmp_path / "mine.parquet").write_bytes(b"PAR1 nothing")
    assert "cannot read mine.parquet" in refusal(tmp_path / "mine.parquet")
    (tmp_path / "mine.npz").write_bytes(b"nothing")
    assert "cannot read mine.npz" in refusal(tmp_path / "mine.npz")
    (tmp_path / "mine.csv.gz").write_bytes(b"nothing")
    assert "cannot read mine.csv.gz" in refusal(tmp_path / "mine.csv.gz")


def test_a_number_as_label_falls_into_a_bin(tmp_path: Path) -> None:
    spec = DataSpec.model_validate(
        {
            "columns": [{"name": "age", "low": 0, "high": 100}],
            "label": {"column": "days", "kind": "bins", "edges": [1.0, 7.0]},
        }
    )
    own = read(csv_file(tmp_path, "age,days\n1,0.5\n1,1\n1,6.9\n1,30\n"), spec)
    assert own.records.labels.tolist() == [0, 1, 1, 2]
    assert spec.label.shown == ("below 1", "1 to 7", "7 or more")
    with pytest.raises(DataMismatch, match="not a number"):
        read(csv_file(tmp_path, "age,days\n1,long\n"), spec)


def test_several_labels_of_a_record_are_one_set_in_any_order(tmp_path: Path) -> None:
    spec = DataSpec.model_validate(
        {
            "columns": [{"name": "age", "low": 0, "high": 100}],
            "label": {"column": "signs", "kind": "sets", "names": ["", "cough", "fever;cough"]},
        }
    )
    own = read(csv_file(tmp_path, "age,signs\n1,cough;fever\n1,fever; cough\n1,\n1,cough\n"), spec)
    assert own.records.labels.tolist() == [2, 2, 0, 1]
    with pytest.raises(LabelMismatch, match="sets of labels that the task does not have"):
        read(csv_file(tmp_path, "age,signs\n1,fever\n"), spec)
    parquet.write_table(pa.table({"age": [1, 2], "signs": [["fever", "cough"], []]}), tmp_path / "mine.parquet")
    assert read(tmp_path / "mine.parquet", spec).records.labels.tolist() == [2, 0]
