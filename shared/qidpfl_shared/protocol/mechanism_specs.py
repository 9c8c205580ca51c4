"""The privacy mechanism of a task: its name and parameters on the wire. `build` returns the mechanism of the core.

The class names are part of the OpenAPI document. The classes of the core end in `Mechanism`.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from ..core.privacy import mechanisms as core
from .fields import Message

Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
Epochs = Annotated[int, Field(ge=1, le=10_000)]
BatchSize = Annotated[int, Field(ge=1, le=10_000_000)]


class _Mechanism(Message):
    """A mechanism. Its name tells which one it is, so the document of the API requires it."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class GradientOnce(_Mechanism):
    """The mean of the clipped per-record gradients over all local data, once per round."""

    name: Literal["gradient_once"] = "gradient_once"
    clip_norm: Positive = Field(description="bound of the L2 norm of one record's gradient")

    def build(self) -> core.GradientOnceMechanism:
        return core.GradientOnceMechanism(clip_norm=self.clip_norm)


class _LocalTraining(_Mechanism):
    """The parameters of all mechanisms with local training."""

    learning_rate: Positive
    epochs: Epochs = 1
    batch_size: BatchSize


class NoisyEpochs(_LocalTraining):
    """Local epochs over disjoint batches, with noise on every batch."""

    name: Literal["noisy_epochs"] = "noisy_epochs"
    clip_norm: Positive = Field(description="bound of the L2 norm of one record's gradient")

    def build(self) -> core.NoisyEpochsMechanism:
        return core.NoisyEpochsMechanism(
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            batch_size=self.batch_size,
        )


class UpdateClip(_LocalTraining):
    """The update of local training, clipped as a whole."""

    name: Literal["update_clip"] = "update_clip"
    clip_norm: Positive = Field(description="bound of the L2 norm of the whole update")

    def build(self) -> core.UpdateClipMechanism:
        return core.UpdateClipMechanism(clip_norm=self.clip_norm)


class PaperLiteral(_LocalTraining):
    """Heuristic noise, no privacy guarantee: the paper's noise on a clipped update."""

    name: Literal["paper_literal"] = "paper_literal"
    clip_norm: Positive = Field(description="bound of the L2 norm of the whole update")

    def build(self) -> core.PaperLiteralMechanism:
        return core.PaperLiteralMechanism(clip_norm=self.clip_norm)


class BoltOn(_LocalTraining):
    """The update of local SGD on softmax regression. Its proof needs convexity and features of bounded norm."""

    name: Literal["bolt_on"] = "bolt_on"
    feature_norm: Positive = Field(description="every record is scaled down to at most this L2 norm")

    def build(self) -> core.BoltOnMechanism:
        return core.BoltOnMechanism.softmax_regression(
            feature_norm=self.feature_norm,
            learning_rate=self.learning_rate,
            epochs=self.epochs,
            batch_size=self.batch_size,
        )


MechanismSpec = Annotated[GradientOnce | NoisyEpochs | UpdateClip | PaperLiteral | BoltOn, Field(discriminator="name")]
