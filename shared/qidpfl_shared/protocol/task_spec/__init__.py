"""The specification of a task: `TaskSpec`, its parts, and the checks between the parts."""

from .data import ColumnSpec, DataSpec, ImageSpec, LabelKind, LabelSpec
from .game import GameSpec, RewardRangeSpec
from .parts import (
    AggregationSpec,
    AuditMode,
    BoundsSpec,
    DefenceSpec,
    Ordinal,
    Partition,
    PartitionKind,
    PrivacySpec,
    Retention,
    RoundsSpec,
    SelectionRule,
    SelectionSpec,
    WorkloadSpec,
)
from .spec import TaskSpec

__all__ = [
    "AggregationSpec",
    "AuditMode",
    "BoundsSpec",
    "ColumnSpec",
    "DataSpec",
    "DefenceSpec",
    "GameSpec",
    "ImageSpec",
    "LabelKind",
    "LabelSpec",
    "Ordinal",
    "Partition",
    "PartitionKind",
    "PrivacySpec",
    "Retention",
    "RewardRangeSpec",
    "RoundsSpec",
    "SelectionRule",
    "SelectionSpec",
    "TaskSpec",
    "WorkloadSpec",
]
