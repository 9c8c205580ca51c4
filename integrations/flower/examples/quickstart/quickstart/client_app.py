"""The client of the app, in Flower's Message API."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import Net, load_data
from .task import train as train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model of the message on the records of this node."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, run = context.node_config, context.run_config
    data = load_data(int(node["partition-id"]), int(node["num-partitions"]))
    lr = float(message.content["config"].get("lr", run["learning-rate"]))
    loss = train_net(net, data, epochs=int(run["local-epochs"]), batch_size=int(run["batch-size"]), lr=lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
