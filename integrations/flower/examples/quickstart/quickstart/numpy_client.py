"""The same client as a `NumPyClient` with a `client_fn`, as apps for earlier versions of Flower have it."""

from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

from .task import Net, load_data, train


class DigitsClient(NumPyClient):
    """Trains on the records of one node."""

    def __init__(self, partition_id: int, num_partitions: int, run: dict[str, Any]) -> None:
        self.data = load_data(partition_id, num_partitions)
        self.run = run

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        net = Net()
        names = net.state_dict().keys()
        net.load_state_dict({name: torch.tensor(values) for name, values in zip(names, parameters, strict=True)})
        lr = float(config.get("lr", self.run["learning-rate"]))
        loss = train(
            net, self.data, epochs=int(self.run["local-epochs"]), batch_size=int(self.run["batch-size"]), lr=lr
        )
        return [values.numpy() for values in net.state_dict().values()], len(self.data), {"loss": loss}


def client_fn(context: Context) -> Client:
    """The client of a node."""
    node = context.node_config
    return DigitsClient(int(node["partition-id"]), int(node["num-partitions"]), dict(context.run_config)).to_client()


app = ClientApp(client_fn=client_fn)
