"""The objective of one client: the loss of its network over its records."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from qidpfl_shared.core.privacy.rounding import clipped_mean_slack
from qidpfl_shared.protocol.wire import TensorLayout
from qidpfl_shared.workloads.networks import check_nothing_changes, check_records_stay_apart
from qidpfl_shared.workloads.records import Records

from ..errors import ClientError
from .data_loader import Batch, DataLoader
from .devices import wide_dtype
from .flat_parameters import FlatParameters, random_models
from .per_sample.clipping import Clipper, ClippingMethod, fastest_method
from .per_sample.functional import NETWORK_FAILURES

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class CheckedNetwork:
    """A network that treats each record by itself, with the method that clips its gradients, and example inputs.

    `answers` is the shape of what the network answers to the example inputs.
    """

    network: nn.Module
    parameters: FlatParameters
    clipping: ClippingMethod
    example_inputs: Tensor
    answers: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The mean cross entropy of a network over records. Its gradients are flat vectors of the widest type."""

    checked: CheckedNetwork
    loader: DataLoader
    chunk: int

    @property
    def network(self) -> nn.Module:
        """The network. Its parameters are the model."""
        return self.checked.network

    @property
    def parameters(self) -> FlatParameters:
        """The parameters of the network."""
        return self.checked.parameters

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self.loader.records)

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return self.parameters.vector.numel()

    def clipped_mean(self, batch: Batch | None = None, *, bound: float) -> Tensor:
        """The mean of the per-record gradients, each clipped to `bound`. Without a batch: over all records."""
        clipper = Clipper(
            network=self.network,
            parameters=self.parameters,
            method=self.checked.clipping.method,
            substitute=self.checked.example_inputs[0],
        )
        total = clipper.clipped_sum(self.loader.measured_chunks(batch, length=self.chunk), bound=bound)
        return total / (self.size if batch is None else len(batch))

    def rounding_slack(self, *, size: int) -> float:
        """The slack that the rounding of `clipped_mean` over `size` records needs."""
        return clipped_mean_slack(size=size, chunk=min(size, self.chunk))

    def mean_gradient(self, batch: Batch) -> Tensor:
        """The gradient of the mean loss over a batch, without clipping. A chunk for which the network fails is zero."""
        total = self._zeros()
        for inputs, labels in self.loader.chunks(batch, length=self.chunk):
            try:
                loss = functional.cross_entropy(self.network(inputs), labels, reduction="sum")
                gradients = torch.autograd.grad(loss, self.parameters.tensors, allow_unused=True)
            except torch.OutOfMemoryError:
                raise
            except NETWORK_FAILURES:
                continue
            total += self.parameters.flatten(gradients)
        return total / len(batch)

    def with_features_bounded(self, norm: float) -> "Objective":
        """A copy in which the features of every record are scaled to at most this norm."""
        return replace(self, loader=DataLoader(self.loader.records, self.parameters.device, feature_norm=norm))

    def _zeros(self) -> Tensor:
        return torch.zeros_like(self.parameters.vector, dtype=wide_dtype(self.parameters.device))


def check_network(
    *,
    network: nn.Module,
    records: Records,
    layout: TensorLayout,
    device: torch.device,
    clipping: ClippingMethod | None = None,
) -> CheckedNetwork:
    """The network, once it is known to fit the records and to treat each of them by itself.

    The check uses random models and made-up inputs. It depends neither on the task's model nor on a record's value.
    `clipping` is the result of an earlier check of the same network, which then is not repeated. Raises
    `ClientError` or `WorkloadError`.
    """
    if not len(records):
        raise ClientError("there are no records to train on")
    parameters = FlatParameters(network.eval(), layout, device)
    inputs, answers = _accepted_inputs(network, records, device)
    check_labels(records, tuple(answers.shape))
    if clipping is None:
        given, models = parameters.vector.clone(), random_models(parameters)
        labels = torch.arange(len(inputs), device=device) % answers.shape[1]
        for model in models:
            parameters.vector.copy_(model)
            check_nothing_changes(network, inputs)
            check_records_stay_apart(network, inputs)
        clipping = fastest_method(network, parameters, inputs, labels, models=models)
        parameters.vector.copy_(given)
    return CheckedNetwork(
        network=network,
        parameters=parameters,
        clipping=clipping,
        example_inputs=inputs,
        answers=tuple(answers.shape),
    )


def check_labels(records: Records, answers: tuple[int, ...]) -> None:
    """Refuse records with a label for which a network with answers of this shape has none. Raises `ClientError`."""
    lowest, highest = int(records.labels.min()), int(records.labels.max())
    if len(answers) != 2 or lowest < 0 or highest >= answers[1]:
        raise ClientError(f"labels {lowest} to {highest} do not fit the network's answers of shape {answers}")


def make_objective(*, checked: CheckedNetwork, loader: DataLoader, chunk: int | None = None) -> Objective:
    """The objective of one client. `chunk` is the number of records in one pass; the default bounds the memory."""
    return Objective(checked=checked, loader=loader, chunk=chunk or checked.clipping.advised_chunk)


def _accepted_inputs(network: nn.Module, records: Records, device: torch.device) -> tuple[Tensor, Tensor]:
    """Made-up inputs that the network accepts, and its answers. A network of words accepts small whole numbers only."""
    shape = (_EXAMPLES, *records.features.shape[1:])
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(shape, generator=generator)
    digits, bits = (torch.randint(end, shape, generator=generator).to(normal) for end in (10, 2))
    with torch.no_grad():
        for inputs in (normal, normal.abs(), digits, bits, torch.zeros(shape)):
            try:
                return inputs.to(device), network(inputs.to(device))
            except NETWORK_FAILURES as error:
                failure = error
    first_line = str(failure).partition("\n")[0]
    raise ClientError(
        f"the network does not accept records of shape {shape[1:]}, not even zeros: {first_line}"
    ) from failure
