"""What the trainings of one process share: checked networks, and records that are converted to tensors once."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from qidpfl_shared.protocol.wire import TensorLayout
from qidpfl_shared.workloads.records import Records

from .data_loader import DataLoader
from .devices import use_full_precision
from .objective import CheckedNetwork, check_labels, check_network

# The converted records of all clients of a process may need this much memory together.
KEPT_IN_ALL = 512 * 2**20


class SharedTraining:
    """Networks and converted records for the clients of one process, which train on parts of the same data.

    A network is made and checked when no other one is free: there are as many as trainings at the same time.
    `examples` are records of the data set; the check depends on their shape and labels only.
    """

    def __init__(
        self, make_network: Callable[[], nn.Module], *, examples: Records, layout: TensorLayout, device: torch.device
    ) -> None:
        self._make_network = make_network
        self._examples = examples
        self._layout = layout
        self._device = device
        self._lock = threading.Lock()
        self._free: list[CheckedNetwork] = []
        self._left = KEPT_IN_ALL
        self._first = self._checked(None)
        self._free.append(self._first)

    @contextmanager
    def network(self) -> Iterator[CheckedNetwork]:
        """A network that no other training uses. Its parameters are those of an earlier training."""
        use_full_precision()
        with self._lock:
            network = self._free.pop() if self._free else None
        if network is None:
            network = self.new_network()
        yield network
        # Not after an error: the network may then be in any state.
        with self._lock:
            self._free.append(network)

    def new_network(self) -> CheckedNetwork:
        """A network of the caller's own."""
        return self._checked(self._first)

    def loader(self, records: Records) -> tuple[DataLoader, bool]:
        """The records of one client, ready for training; and whether the caller may keep them for later rounds.

        Raises `ClientError` if a label does not fit the network.
        """
        check_labels(records, self._first.answers)
        loader = DataLoader(records, self._device)
        with self._lock:
            fits = 0 < loader.kept_bytes <= self._left
            if fits:
                self._left -= loader.kept_bytes
        return loader, fits

    def _checked(self, like: CheckedNetwork | None) -> CheckedNetwork:
        use_full_precision()
        return check_network(
            network=self._make_network(),
            records=self._examples,
            layout=self._layout,
            device=self._device,
            clipping=None if like is None else like.clipping,
        )
