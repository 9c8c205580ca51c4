"""The client's commands: each mistake is one line with exit code 1, and leaves nothing partial on either side."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from qidpfl_client.cli.app import app
from qidpfl_client.journal.journal import Journal, Membership
from qidpfl_shared.protocol.presets import preset
from support.coordinators import Coordinator

pytestmark = pytest.mark.live

FOREVER = {"rounds": {"enrolment_window_s": 3600.0, "quiet_s": 3600.0}}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"preset": "mnist"},
    "unknown": {"workload": {"dataset": "cats-and-dogs"}},
    "noiseless": {"game": {"policy": "none"}, "privacy": {"noise": False}},
    "heuristic": {
        "privacy": {"mechanism": {"name": "paper_literal", "clip_norm": 1.0, "learning_rate": 0.1, "batch_size": 16}},
        "aggregation": {"learning_rate": 1.0, "momentum": 0.0},
    },
}
OTHERS = Membership(task_id="other", server="http://x", enrolment_key="k", spec="{}", spec_digest="d")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with Coordinator(tmp_path_factory.mktemp("coordinator")) as live:
        yield live


@pytest.fixture(scope="module")
def codes(coordinator: Coordinator) -> dict[str, str]:
    return {name: coordinator.create_task(name, **FOREVER | changes)[1] for name, changes in TASKS.items()}


Run = Callable[..., Result]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def run(coordinator: Coordinator, codes: dict[str, str], journal: Path) -> Run:
    def ran(*arguments: object, task: str = "digits", **options: str) -> Result:
        """The command with everything right except what is given."""
        given = {"server": coordinator.url, "code": codes[task], "journal": str(journal), "first-contact": "0.2"}
        named = [text for name, value in (given | options).items() if value for text in (f"--{name}", value)]
        return CliRunner().invoke(app, ["run", *named, *map(str, arguments)])

    return ran


def failed_with(result: Result) -> str:
    """The one line of a command that failed."""
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    *said, line = [line for line in result.stderr.splitlines() if "trying again" not in line]
    assert all("limits: at most rho " in before for before in said) and len(said) <= 1
    assert line.startswith("qidpfl-client: ") and "Traceback" not in line
    return line


@pytest.fixture(autouse=True)
def nothing_half_done(coordinator: Coordinator, journal: Path) -> Iterator[None]:
    yield
    with coordinator.admin as http:
        tasks = http.get("/v1/tasks").raise_for_status().json()
    assert {task["name"]: task["clients"] for task in tasks} == dict.fromkeys(TASKS, 0)
    if journal.exists():
        with Journal(journal, read_only=True) as opened:
            assert opened.membership("other") == OTHERS, "a journal is left where there was none"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"code": "no code at all"}, "an enrolment code looks like task.secret"),
        ({"code": ""}, "give exactly one of --code and --code-file"),
        ({"code-file": "nowhere.txt", "code": ""}, "nowhere.txt: No such file or directory"),
        ({"code-file": "nowhere.txt"}, "give exactly one of --code and --code-file"),
        ({"server": "http://127.0.0.1:9"}, "http://127.0.0.1:9 does not answer"),
        ({"server": "http://coordinator.example:8000"}, "plain http to coordinator.example"),
        ({"server": "http://coordinator.example:8000"}, "use https, or --insecure in a network that you trust"),
        ({"server": "ftp://coordinator.example"}, "must be like https://host:port"),
        ({"workload": "no_such_module:Workload"}, "no_such_module"),
        ({"workload": "json:NoSuchClass"}, "NoSuchClass"),
        ({"device": "abacus"}, "device 'abacus': must be auto"),
        ({"device": "cuda:99"}, "device cuda"),
        ({"privacy-value": "much"}, "--privacy-value 'much' is neither a number nor LOW:HIGH"),
        ({"privacy-value": "-1"}, "--privacy-value -1: what privacy is worth to its owner must be greater than 0"),
        ({"privacy-value": "0"}, "privacy_value = 0.0: must be greater than 0"),
        ({"privacy-value": "1e999"}, "must be finite"),
        ({"privacy-value": "1000"}, "the privacy value 1000 is outside the range of the task, 0.9 to 1.1"),
        ({"rho-cap": "0"}, "rho_cap = 0.0"),
        ({"rho-cap": "nan"}, "rho_cap = nan"),
        ({"lifetime-rho": "-1"}, "lifetime_rho = -1.0"),
        ({"lifetime-rho": "0.01"}, "rho 0.01 is left, and the histogram needs 0.02"),
        ({"histogram-rho": "inf"}, "histogram_rho = inf"),
        ({"histogram-rho": "100", "lifetime-rho": "0.05"}, "the histogram needs 0.1"),
        ({"min-utility": "nan"}, "min_utility = nan"),
        ({"cost-per-record": "-1"}, "per_record = -1.0"),
        ({"patience": "nan"}, "patience = nan"),
        ({"first-contact": "-1"}, "first contact = -1.0"),
        ({"task": "mnist", "data-dir": "/no/such/folder"}, "there is no folder /no/such/folder: create it, or correct"),
        ({"task": "unknown"}, "cats-and-dogs"),
        ({"task": "noiseless"}, "uses no noise: its releases are unprotected (--accept-unproven takes part anyway)"),
        ({"task": "heuristic"}, "heuristic noise, no privacy guarantee (--accept-unproven takes part anyway)"),
    ],
)
def test_a_mistake_is_one_line(run: Run, options: dict[str, str], said: str) -> None:
    assert said in failed_with(run(**options))


def test_a_wrong_secret_is_one_line_that_does_not_show_it(run: Run, codes: dict[str, str]) -> None:
    task_id, _, _ = codes["digits"].partition(".")
    line = failed_with(run(code=f"{task_id}.a-wrong-secret-of-a-client"))
    assert "missing, wrong or revoked" in line and "a-wrong-secret" not in line


def test_an_empty_code_file_is_called_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").write_text("\n")
    said = failed_with(run(**{"code": "", "code-file": str(tmp_path / "nothing")}))
    assert "nothing is empty: ask the operator for an enrolment code" in said


def test_a_file_that_is_not_an_enrolment_code_is_reported_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    assert "does not contain an enrolment code" in failed_with(
        run(**{"code": "", "code-file": str(tmp_path / "binary")})
    )
    assert "Is a directory" in failed_with(run(**{"code": "", "code-file": str(tmp_path)}))


def test_an_exact_histogram_needs_consent(run: Run) -> None:
    assert "--accept-unproven" in failed_with(run("--exact-histogram"))


def test_an_ordinal_beyond_the_testbed_is_one_line(run: Run) -> None:
    assert "no shard 99" in failed_with(run(ordinal="99"))


def test_a_journal_in_use_is_one_line(run: Run, journal: Path) -> None:
    with Journal(journal) as opened:
        opened.save_membership(OTHERS)
        assert failed_with(run()).endswith(f"{journal} is in use by another process")


def test_a_limit_above_that_of_the_journal_is_one_line(run: Run, journal: Path) -> None:
    with Journal(journal) as opened:
        opened.limits.keep_first(None)
        opened.save_membership(OTHERS)
    line = failed_with(run(**{"lifetime-rho": "3"}))
    assert f"qidpfl-client ledger raise --journal {journal} --lifetime-rho 3" in line
    assert failed_with(raised(journal, "0.1")).endswith("the option --lifetime-rho of a run lowers it")
    assert "lifetime_rho = -1.0" in failed_with(raised(journal, "-1"))
    with Journal(journal, read_only=True) as kept:
        assert [limit.lifetime_rho for limit in kept.limits.history()] == [0.2]


def raised(journal: Path, lifetime_rho: str) -> Result:
    words = ["ledger", "raise", "--journal", str(journal), "--lifetime-rho", lifetime_rho]
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize("order", [("--journal", "", "raise"), ("raise", "--journal", "")])
def test_raising_a_limit_says_what_it_means_and_is_in_the_ledger(journal: Path, order: tuple[str, ...]) -> None:
    with Journal(journal) as opened:
        opened.limits.keep_first(None)
        opened.save_membership(replace(OTHERS, spec=preset("digits").model_dump_json()))
    words = ["ledger", *(word or str(journal) for word in order), "--lifetime-rho", "3"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    before, after = result.stdout.splitlines()
    assert "rho 0.2, epsilon 2.8 at delta 1e-05: all releases together change the odds" in before
    assert "rho 3, epsilon 13.8 at delta 1e-05: this hardly protects a record" in after
    shown = CliRunner().invoke(app, ["ledger", "--journal", str(journal)]).stdout
    assert [line.split()[2:4] for line in shown.splitlines() if line.startswith("limit: ")] == [
        ["rho", "0.2,"],
        ["rho", "3,"],
    ]
    body = json.loads(CliRunner().invoke(app, ["ledger", "--json", "--journal", str(journal)]).stdout)
    assert [limit["lifetime_rho"] for limit in body["limits"]] == [0.2, 3.0]
    with Journal(journal) as opened:
        opened.save_membership(OTHERS)


def test_raising_the_limit_of_no_journal_is_one_line_and_makes_none(journal: Path) -> None:
    assert "has no limit yet" in failed_with(raised(journal, "3"))
    assert not journal.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--no-histogram",), "the task selects clients by their label histograms"),
        (("--no-histogram", "--exact-histogram"), "--no-histogram and --exact-histogram contradict each other"),
        (("--no-histogram", "--histogram-rho", "0.1"), "--no-histogram and --histogram-rho contradict each other"),
    ],
)
def test_a_histogram_that_is_needed_or_wanted_twice_is_one_line(run: Run, options: tuple[str, ...], said: str) -> None:
    assert said in failed_with(run(*options))


def test_a_damaged_journal_is_one_line_and_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"what was a journal once " * 1000)
    before = damaged.read_bytes()
    assert f"the journal {damaged} cannot be used" in failed_with(run(journal=str(damaged)))
    assert "cannot be used" in failed_with(CliRunner().invoke(app, ["ledger", "--journal", str(damaged)]))
    assert damaged.read_bytes() == before


@pytest.mark.parametrize("room", [0, 40_000])
def test_a_journal_on_a_full_disk_is_one_line(run: Run, room: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        result = run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot be used" in failed_with(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--delay", "inf"), "delay = inf"),
        (("--free-riders", "0.6", "--replayers", "0.6"), "add up to at most 1"),
        (("--privacy-value", "2:much"), "neither a number nor LOW:HIGH"),
        (("--device", "abacus"), "device 'abacus'"),
        (("--patience", "-1"), "patience = -1.0"),
        (("--no-histogram", "--exact-histogram"), "contradict each other"),
    ],
)
def test_a_mistake_with_a_fleet_is_one_line(
    coordinator: Coordinator, codes: dict[str, str], tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    where = ["--server", coordinator.url, "--code", codes["digits"], "--journals", str(tmp_path / "fleet")]
    assert said in failed_with(CliRunner().invoke(app, ["fleet", "--clients", "3", *where, *options]))
    assert not (tmp_path / "fleet").exists() or list((tmp_path / "fleet").iterdir()) == []


def test_a_fleet_with_a_limit_above_that_of_a_journal_starts_no_member(codes: dict[str, str], tmp_path: Path) -> None:
    with Journal(tmp_path / "client-00001.sqlite") as opened:
        opened.limits.keep_first(None)
        opened.save_membership(OTHERS)
    words = ["fleet", "--server", "http://127.0.0.1:9", "--code", codes["digits"], "--journals", str(tmp_path)]
    line = failed_with(CliRunner().invoke(app, [*words, "--clients", "3", "--lifetime-rho", "3"]))
    assert "client-00001.sqlite --lifetime-rho 3" in line
    assert [path.name for path in tmp_path.glob("*.sqlite")] == ["client-00001.sqlite"]


def test_a_ledger_that_is_not_there_is_one_line_and_is_not_made(journal: Path) -> None:
    assert "there is no journal" in failed_with(CliRunner().invoke(app, ["ledger", "--journal", str(journal)]))
    assert not journal.exists()


def test_help_is_shown_without_loading_torch() -> None:
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom qidpfl_client.cli.app import app\n"
        "for command in ([], ['run'], ['fleet'], ['ledger'], ['ledger', 'raise']):\n"
        "    shown = CliRunner().invoke(app, [*command, '--help'])\n"
        "    assert shown.exit_code == 0 and 'Usage' in shown.stdout, shown\n"
        "assert not {'torch', 'sklearn', 'scipy.stats'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def quoted(coordinator: Coordinator, codes: dict[str, str], *more: str, task: str = "digits") -> Result:
    given = ["quote", "--server", coordinator.url, "--code", codes[task], "--size", "110", *more]
    return CliRunner().invoke(app, given)


def test_a_quote_reads_the_spec_and_enrols_no_client(coordinator: Coordinator, codes: dict[str, str]) -> None:
    """`nothing_half_done` checks that the task has no client afterwards."""
    done = quoted(coordinator, codes, "--public-data", "--json")
    assert done.exit_code == 0, done.output
    low, own, high = json.loads(done.stdout)
    assert [round(quote["reported_value"], 3) for quote in (low, own, high)] == [0.9, 1.0, 1.1]
    assert own["rounds"] == 20 and own["earned"] > own["cost"] > 0 and own["epsilon"] > 1
    shown = quoted(coordinator, codes, "--public-data")
    assert "1  yours" in shown.stdout and f"{own['earned']:.4f}" in shown.stdout


@pytest.mark.parametrize(
    ("task", "more", "said"),
    [
        ("noiseless", (), "no rewards"),
        ("digits", ("--others", "many"), "--others"),
        ("digits", ("--privacy-value", "7"), "privacy values from"),
    ],
)
def test_a_quote_that_cannot_be_made_is_one_line(
    coordinator: Coordinator, codes: dict[str, str], task: str, more: tuple[str, ...], said: str
) -> None:
    assert said in failed_with(quoted(coordinator, codes, *more, task=task))
