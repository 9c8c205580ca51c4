"""The summary of the task: the ledgers of the clients, and a check that the payments add up."""

from rich.console import Console
from rich.table import Table

from qidpfl_client.journal.journal import Journal
from qidpfl_client.journal.ledger import read_ledger
from qidpfl_experiments.testbed.process import audit
from qidpfl_shared.core.money import from_micro

from ..record import TaskRecord
from .processes import DemoProcesses


def print_summary(record: TaskRecord, processes: DemoProcesses) -> None:
    """Print the ledgers, the payments, the guarantee and the audit of the coordinator."""
    console = Console(highlight=False)
    table = Table(title="Ledgers, from the clients' own journals", title_justify="left", box=None)
    delta = record.task.spec.privacy.delta
    for name in ("client", "privacy value", "spent rho", f"epsilon at {delta:g}", "left of lifetime", "earned"):
        table.add_column(name, justify="right")
    earned = 0
    for client in record.clients:
        with Journal(processes.journal(client.ordinal), read_only=True) as journal:
            ledger = read_ledger(journal)
        earned += ledger.earned_micro
        table.add_row(
            str(client.ordinal),
            f"{client.privacy_value or 0:.2f}",
            f"{ledger.spent_rho:.3f}",
            f"{ledger.epsilon:.2f}",
            f"{ledger.remaining_rho:.3f} of {ledger.lifetime_rho:g}",
            f"{from_micro(ledger.earned_micro):.6f}",
        )
    console.print(table)
    reward = sum(result.reward_micro for result in record.rounds)
    kept = sum(result.kept_micro for result in record.rounds)
    print(
        f"\nRewards {from_micro(reward):.6f} = received {from_micro(earned):.6f} + kept {from_micro(kept):.6f}", end=""
    )
    print(": exactly." if reward == earned + kept else ": THEY DO NOT ADD UP.")
    if record.rounds and record.rounds[-1].accuracy is not None:
        chance = 1 / record.task.spec.workload.labels
        print(f"Accuracy {record.rounds[-1].accuracy:.3f} on held-out data; chance would be {chance:.2f}.")
    records = [client.size or 0 for client in record.selected]
    print(
        f"Every record is protected with epsilon {record.epsilon(rounds=len(record.rounds)):.1f} at delta {delta:g};",
        end="",
    )
    print(f" a client has {min(records)} to {max(records)} records, and more records give more protection.")
    print(f"Audit of the coordinator: {audit(processes.state_dir)}.")
