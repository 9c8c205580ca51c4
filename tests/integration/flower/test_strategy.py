"""The strategy in Flower's own simulation: real nodes in processes of ray, one with two labels, one without noise."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.flower_environment import FLOWER, environment

pytestmark = [pytest.mark.live, pytest.mark.long]

QUICKSTART = FLOWER / "examples" / "quickstart"
ROUNDS = 2
# Node 3 has two labels only, node 4 declares a budget and adds no noise, and node 5 fails with a secret in its message.
SCRIPT = """
import json, sys
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from qidpfl_client.owner import Owner
from qidpfl_flower.flower_task import flower_task
from qidpfl_flower.paid_app import paid_app
from qidpfl_flower.parameters import layout_of_arrays
from qidpfl_flower.strategy import PaidStrategy

NODES, ROUNDS, DIMENSION = 7, int(sys.argv[1]), 500

def labels(context):
    kinds = 2 if context.node_config["partition-id"] == 3 else 5
    return np.arange(100) % kinds

def owner(context):
    value = 1.0 + 0.02 * context.node_config["partition-id"]
    return Owner(privacy_value=value, rho_cap=2.0, lifetime_rho=15.0, histogram_rho=0.1)

app = ClientApp()

@app.train()
def train(message, context):
    trained = message.content["arrays"]["weight"].numpy() + np.float32(context.run_config["step"])
    seen = context.state["seen"]["rounds"] + 1 if "seen" in context.state else 1
    context.state["seen"] = MetricRecord({"rounds": seen})
    assert seen == message.content["config"]["server-round"], "the state of the app does not last"
    if context.node_config["partition-id"] == 5:
        raise ValueError("SECRET-RECORD")
    arrays = ArrayRecord({"weight": Array(trained)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 100})}), reply_to=message)

class NoNoise:
    def standard_normal(self, count, *, release):
        return np.zeros(count)

made = {"labels": labels, "owner": owner, "run_config": {"step": 0.001}}
honest, silent = paid_app(app, **made), paid_app(app, noise=NoNoise(), **made)

class Nodes(ClientApp):
    def __call__(self, message, context):
        cheats = context.node_config["partition-id"] == 4 and message.metadata.message_type == "train"
        return (silent if cheats else honest)(message, context)

initial = ArrayRecord({"weight": Array(np.zeros(DIMENSION, dtype=np.float32))})
overrides = {
    "bounds": {"rho_max": 1.0, "rho_min": 1e-6},
    "privacy": {"histogram_rho": 0.1, "lifetime_rho": 15.0},
    "game": {"policy": "fixed", "fixed_reward_micro": 30_000_001, "privacy_weight": 100.0},
}
layout = layout_of_arrays({"weight": initial["weight"].numpy()})
strategy = PaidStrategy(flower_task(layout, labels=5, clients=NODES, rounds=ROUNDS, overrides=overrides))
server = ServerApp()
results = []

@server.main()
def main(grid, context):
    results.append(strategy.start(grid=grid, initial_arrays=initial, num_rounds=ROUNDS + 1))

run_simulation(server_app=server, client_app=Nodes(), num_supernodes=NODES)
task = strategy.task
print("RESULT " + json.dumps({
    "ended": task.ended,
    "nodes": {
        node.node_id: {
            "selected": node.selected, "distance": node.label_distance, "paid_micro": node.paid_micro,
            "value": node.profile.privacy_value, "spent": node.account.spent_rho,
        }
        for node in task.nodes.values()
    },
    "rounds": [
        {
            "void": r.void, "reward": r.reward_micro, "kept": r.kept_micro,
            "nodes": {
                i: {"rho": n.rho, "paid": n.payment_micro, "verdict": n.verdict, "refusal": n.refusal}
                for i, n in r.nodes.items()
            },
        }
        for r in strategy.rounds
    ],
    "metrics": {number: dict(record) for number, record in results[0].train_metrics_clientapp.items()},
    "changed": bool(np.any(results[0].arrays["weight"].numpy())),
}))
"""


def run(flower: Path, folder: Path, *command: str) -> str:
    done = subprocess.run(
        [str(flower), *command], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def result(flower: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("simulation")
    (folder / "simulation.py").write_text(SCRIPT)
    printed = run(flower, folder, "simulation.py", str(ROUNDS))
    found: dict[str, Any] = json.loads(printed.split("RESULT ")[1].splitlines()[0])
    return found


def test_nodes_are_selected_by_their_label_histograms(result: dict[str, Any]) -> None:
    nodes = result["nodes"].values()
    assert len(nodes) == 7 and sum(node["selected"] for node in nodes) == 6
    (refused,) = (node for node in nodes if not node["selected"])
    assert refused["value"] == 1.06 and refused["distance"] > 0.75 and refused["paid_micro"] == 0


def test_rewards_are_paid_exactly_for_the_declared_budgets(result: dict[str, Any]) -> None:
    assert len(result["rounds"]) == ROUNDS and result["ended"] == f"the task has {ROUNDS} rounds"
    for round_ in result["rounds"]:
        assert not round_["void"] and round_["reward"] == 30_000_001
        assert sum(node["paid"] for node in round_["nodes"].values()) + round_["kept"] == round_["reward"]
        declared = sum(node["rho"] for node in round_["nodes"].values())
        for node in round_["nodes"].values():
            if node["paid"]:
                assert abs(node["paid"] - node["rho"] / declared * round_["reward"]) <= 1
    for number, node in result["nodes"].items():
        assert node["paid_micro"] == sum(round_["nodes"].get(number, {}).get("paid", 0) for round_ in result["rounds"])


def test_a_node_with_a_lower_privacy_value_sells_more(result: dict[str, Any]) -> None:
    values = {number: node["value"] for number, node in result["nodes"].items()}
    budgets = {values[number]: node["rho"] for number, node in result["rounds"][0]["nodes"].items()}
    del budgets[1.1]
    assert [budgets[value] for value in sorted(budgets)] == sorted(budgets.values(), reverse=True)


def test_a_node_without_noise_is_found_and_not_paid(result: dict[str, Any]) -> None:
    (cheat,) = (number for number, node in result["nodes"].items() if node["value"] == 1.08)
    for round_ in result["rounds"]:
        node = round_["nodes"][cheat]
        assert (node["verdict"], node["paid"]) == ("too_little_noise", 0) and node["rho"] > 0
        others = [one for number, one in round_["nodes"].items() if number != cheat and one["rho"]]
        assert {one["verdict"] for one in others} == {"consistent"} and round_["kept"] > 0
    assert result["nodes"][cheat]["paid_micro"] == 0 and result["nodes"][cheat]["spent"] > 0.1


def test_the_server_does_not_learn_why_an_app_failed(result: dict[str, Any]) -> None:
    """Flower would send it the text of the error."""
    (broken,) = (number for number, node in result["nodes"].items() if node["value"] == 1.1)
    for round_ in result["rounds"]:
        node = round_["nodes"][broken]
        assert (node["refusal"], node["rho"], node["paid"]) == ("failed", 0, 0)
    assert result["nodes"][broken]["spent"] == pytest.approx(0.1)


def test_flower_has_the_figures_and_the_model(result: dict[str, Any]) -> None:
    for number, round_ in enumerate(result["rounds"], start=1):
        figures = result["metrics"][str(number)]
        assert figures["updates"] == 4 and figures["reward"] == pytest.approx(30.000001)
        assert round((figures["reward"] - figures["paid"]) * 1e6) == round_["kept"]
    assert result["changed"]


def test_the_example_pays_its_nodes(flower: Path, tmp_path: Path) -> None:
    printed = run(flower, tmp_path, str(QUICKSTART / "paid_simulation.py"), "3", "1")
    paid = [line.rpartition(" ")[2] for line in printed.splitlines() if line.startswith("node ")]
    assert len(paid) == 3 and all(float(amount) > 0 for amount in paid)
