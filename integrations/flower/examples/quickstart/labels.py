"""What an owner adds to bring the app along: the labels of the records that it trains on."""

from flwr.app import Context
from quickstart.task import load_data


def labels(context: Context) -> list[int]:
    """One label for each record of this node."""
    node = context.node_config
    data = load_data(int(node["partition-id"]), int(node["num-partitions"]))
    return [int(label) for label in data.tensors[1]]
