"""`Trainer`: computes what a client releases in a round."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qidpfl_shared.protocol import mechanism_specs
from qidpfl_shared.protocol.task_spec import PrivacySpec
from qidpfl_shared.protocol.wire import TensorLayout, Vector32
from qidpfl_shared.workloads.records import Records

from ..errors import ClientError
from ..noise import NoiseSource
from .data_loader import DataLoader
from .devices import use_full_precision
from .mechanisms import ReleaseNoise, bolt_on, clipped_training, gradient_once, noisy_epochs
from .objective import CheckedNetwork, check_network, make_objective
from .per_sample.clipping import ClippingMethod
from .softmax_regression import SoftmaxRegression


class Trainer:
    """Trains a network on the records of one client. The trainer changes the network.

    `chunk` is the number of records in one pass; the default keeps memory bounded. `clipping` is the one of an earlier
    trainer of the same network: the check of the network is then not repeated.
    """

    def __init__(
        self,
        *,
        network: nn.Module,
        records: Records,
        layout: TensorLayout,
        device: torch.device,
        chunk: int | None = None,
        clipping: ClippingMethod | None = None,
    ) -> None:
        use_full_precision()
        checked = check_network(network=network, records=records, layout=layout, device=device, clipping=clipping)
        self._prepare(checked, DataLoader(records, device), chunk=chunk)

    @classmethod
    def with_checked(cls, checked: CheckedNetwork, loader: DataLoader) -> "Trainer":
        """A trainer with a network that was checked before, on records whose labels fit it."""
        trainer = cls.__new__(cls)
        trainer._prepare(checked, loader)
        return trainer

    def _prepare(self, checked: CheckedNetwork, loader: DataLoader, *, chunk: int | None = None) -> None:
        self.size = len(loader.records)
        self.clipping = checked.clipping
        self._objective = make_objective(checked=checked, loader=loader, chunk=chunk)
        self._regression: SoftmaxRegression | None = None

    def release(
        self, *, privacy: PrivacySpec, model: Vector32, rho: float | None, noise: NoiseSource, name: str
    ) -> npt.NDArray[np.float64]:
        """The flat upload of a round, in the order of the layout: the result of the mechanism, with noise for `rho`.

        `name` must differ for each release of a task: it determines the order of records, and seeded noise. `rho` is
        None if and only if the task uses no noise.
        """
        if privacy.noise == (rho is None):
            raise ClientError("a task with noise needs a budget, and a task without noise takes none")
        self._objective.parameters.load(model)
        upload = self._compute(privacy.mechanism, ReleaseNoise(source=noise, rho=rho, release=name))
        values: npt.NDArray[np.float64] = upload.to("cpu", torch.float64).numpy()
        return values

    def _compute(self, mechanism: mechanism_specs.MechanismSpec, noise: ReleaseNoise) -> Tensor:
        match mechanism:
            case mechanism_specs.GradientOnce():
                return gradient_once(self._objective, mechanism, noise)
            case mechanism_specs.NoisyEpochs():
                return noisy_epochs(self._objective, mechanism, noise)
            case mechanism_specs.UpdateClip() | mechanism_specs.PaperLiteral():
                return clipped_training(self._objective, mechanism, noise)
            case mechanism_specs.BoltOn():
                return bolt_on(self._softmax_regression(mechanism.feature_norm), mechanism, noise)

    def _softmax_regression(self, feature_norm: float) -> SoftmaxRegression:
        """The objective as softmax regression on bounded features, made once for all rounds of a task."""
        if self._regression is None or self._regression.feature_norm != feature_norm:
            objective = self._objective.with_features_bounded(feature_norm)
            self._regression = SoftmaxRegression(objective=objective, feature_norm=feature_norm)
        return self._regression
