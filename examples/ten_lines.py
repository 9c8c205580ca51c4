"""From import to chart in ten lines: ten clients sell their privacy, on live services on this machine."""

from qidpfl import Task, Testbed

task = Task.from_preset("digits").with_(horizon=10)
with Testbed(clients=10) as bed:
    run = bed.run(task)
print(run)
print(run.rounds[["round_number", "reward", "paid", "accuracy", "epsilon"]].to_string(index=False))
print(run.clients[["ordinal", "state", "privacy_value", "spent_rho", "earned"]].to_string(index=False))
run.plot("results/ten-lines.png")
