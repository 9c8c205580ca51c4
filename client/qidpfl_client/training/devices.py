"""The device on which the network runs."""

from typing import Any

import torch

from ..errors import ClientError

CHOICES = "auto, cpu, cuda, cuda:N or mps"


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` takes cuda if there is one, else the cpu.

    Raises `ClientError` if the name is unknown or this machine does not have the device.
    """
    kind, colon, index = name.partition(":")
    match kind:
        case "auto" if not colon:
            # Not mps: its releases are heuristic.
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        case "cpu" if not colon:
            return torch.device("cpu")
        case "mps" if not colon:
            if not torch.backends.mps.is_available():
                raise ClientError("device mps: not available on this machine or in this build of torch; use cpu")
            return torch.device("mps")
        case "cuda" if not colon or index.isdecimal():
            return _cuda(int(index) if colon else None)
    raise ClientError(f"device {name!r}: must be {CHOICES}")


def use_full_precision() -> None:
    """Switch off all reduced forms of float32 (TF32, bfloat16): the error analysis of clipping needs its 24 bits."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    onednn: Any = torch.backends.mkldnn
    onednn.conv.fp32_precision = onednn.rnn.fp32_precision = "ieee"


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device, used for sums over many records."""
    return torch.float32 if device.type == "mps" else torch.float64


def _cuda(index: int | None) -> torch.device:
    if not torch.cuda.is_available():
        reason = (
            "there is no usable GPU; check the driver, or use cpu"
            if torch.version.cuda
            else "this build of torch is for the CPU only; install a CUDA build, or use cpu"
        )
        raise ClientError(f"device cuda: {reason}")
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        raise ClientError(f"device cuda:{index}: there are {count}, counted from 0")
    return torch.device("cuda" if index is None else f"cuda:{index}")
