"""Members of a fleet share networks: each gets the bits that it gets alone, whatever trained before it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
import torch

from qidpfl_client.noise import UnsafeSeededNoise
from qidpfl_client.training.reuse import SharedTraining
from qidpfl_client.training.trainer import Trainer
from qidpfl_shared.protocol.mechanism_specs import MechanismSpec
from qidpfl_shared.protocol.task_spec import PrivacySpec
from qidpfl_shared.workloads.networks import build_network, layout_of
from qidpfl_shared.workloads.records import Records
from support.training.cases import CPU, MECHANISMS, random_records

WIDTH, LABELS, MEMBERS = 12, 4, 6
SIZES = [33, 64, 65, 20, 130, 64]
RECORDS = [random_records(size, WIDTH, LABELS, seed=number) for number, size in enumerate(SIZES)]


def network() -> torch.nn.Module:
    return build_network("linear", labels=LABELS, record_shape=(WIDTH,))


LAYOUT = layout_of(network())
MODELS = [np.random.default_rng(seed).standard_normal(LAYOUT.dimension).astype(np.float32) for seed in range(2)]


def released(trainer: Trainer, mechanism: MechanismSpec, member: int, model: int) -> npt.NDArray[np.float64]:
    privacy = PrivacySpec(mechanism=mechanism, lifetime_rho=None, delta=1e-5, histogram_rho=0.1)
    noise = UnsafeSeededNoise(seed=member)
    return trainer.release(privacy=privacy, model=MODELS[model], rho=0.1, noise=noise, name=f"task/round/{model}")


def alone(records: Records, mechanism: MechanismSpec, member: int, model: int) -> npt.NDArray[np.float64]:
    trainer = Trainer(network=network(), records=records, layout=LAYOUT, device=CPU)
    return released(trainer, mechanism, member, model)


@pytest.mark.parametrize("name", ["gradient_once", "noisy_epochs", "update_clip", "bolt_on"])
def test_a_member_gets_the_bits_that_it_gets_alone(name: str) -> None:
    mechanism = MECHANISMS[name]
    examples = random_records(10, WIDTH, LABELS, seed=99)
    shared = SharedTraining(network, examples=examples, layout=LAYOUT, device=CPU)
    loaders = [shared.loader(records)[0] for records in RECORDS]

    def step(member: int, model: int) -> npt.NDArray[np.float64]:
        with shared.network() as checked:
            return released(Trainer.with_checked(checked, loaders[member]), mechanism, member, model)

    for model in range(len(MODELS)):
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(step, range(MEMBERS), [model] * MEMBERS))
        for member, bits in enumerate(found):
            np.testing.assert_array_equal(bits, alone(RECORDS[member], mechanism, member, model))
