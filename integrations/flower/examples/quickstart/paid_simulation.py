"""The same app in Flower's own simulation, with nodes that are paid for their privacy.

python paid_simulation.py [NODES] [ROUNDS]
"""

import sys
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from labels import labels
from quickstart.client_app import app
from quickstart.server_app import evaluate
from quickstart.task import Net

from qidpfl_client.owner import Owner
from qidpfl_flower.app_loading import FlowerProject
from qidpfl_flower.flower_task import flower_task
from qidpfl_flower.paid_app import paid_app
from qidpfl_flower.parameters import layout_of_arrays
from qidpfl_flower.strategy import PaidStrategy
from qidpfl_shared.core.money import from_micro


def owner(context: Context) -> Owner:
    """The owner of a node. The records are public, so only the limits of the task hold."""
    value = 1.0 + 0.02 * int(context.node_config["partition-id"])
    return Owner(privacy_value=value, rho_cap=2.0, lifetime_rho=15.0, histogram_rho=0.1)


def simulate(nodes: int, rounds: int) -> PaidStrategy:
    """Run the rounds on this machine."""
    initial = ArrayRecord(Net().state_dict())
    layout = layout_of_arrays({name: array.numpy() for name, array in initial.items()})
    strategy = PaidStrategy(flower_task(layout, labels=10, clients=nodes, rounds=rounds))
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, evaluate_fn=evaluate)

    run_config = FlowerProject.named(str(Path(__file__).parent)).run_config
    paid = paid_app(app, labels=labels, owner=owner, run_config=run_config)
    run_simulation(server_app=server_app, client_app=paid, num_supernodes=nodes)
    return strategy


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    done = simulate(*(numbers + [4, 3][len(numbers) :]))
    assert done.task is not None
    for number, node in enumerate(done.task.nodes.values()):
        print(f"node {number}: label distance {node.label_distance:.2f}, paid {from_micro(node.paid_micro):.6f}")
