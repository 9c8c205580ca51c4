"""A complete custom client on the SDK: softmax regression on a shard of the digits, in thirty lines of code.

usage: python examples/custom_client.py URL < FILE_WITH_THE_ENROLMENT_CODE

It computes real gradients, clips them per record and adds noise from the operating system's entropy. It stores nothing
on disk, so it must not be restarted with the same records: it would spend their privacy budget twice. A client that can
be restarted needs a journal, like `qidpfl-client`.
"""

import contextlib
import sys

import numpy as np
from scipy.special import softmax
from sklearn.datasets import load_digits

from qidpfl_client import api, errors, noise
from qidpfl_shared.core.privacy.histogram import private_histogram
from qidpfl_shared.protocol.messages import Declaration, Profile

code, source, seen, left = sys.stdin.readline().strip(), noise.SystemNoise(), 0, 1.9  # the budget of all rounds
task = api.TaskApi(api.connect(sys.argv[1]), task_id=api.split_code(code)[0])
# The SDK reads the task before it enrols, and refuses what it does not know.
spec, digits, shard = task.task(code=code).spec, load_digits(), slice(task.enrol(code=code).ordinal, 1437, 10)
mechanism, weight = spec.privacy.mechanism, spec.game.privacy_weight
assert mechanism.name == "gradient_once" and spec.privacy.noise and spec.dimension == 650, "unsupported task"
x, y = np.insert(digits.data[shard] / 16, 64, 1.0, axis=1), np.eye(10)[digits.target[shard]]  # pixels and bias, labels

counts = private_histogram(counts=y.sum(axis=0), rho=0.1, standard_noise=source.standard_normal(10, release="labels"))
task.store_profile(Profile(label_counts=counts, size=len(y), privacy_value=1.0, histogram_rho=0.1, lifetime_rho=2.0))

# This client waits for new rounds only. It ignores further attempts of a round: its first answer stays valid.
while (news := task.announcement(after=(seen, 1000))) is None or news.task_state in ("enrolling", "training"):
    offer, seen = (news.round, news.round.round_number) if news and news.round else (None, seen)
    # The best response to reward and total for a privacy value of 1.
    rho = min(left, offer.rho_max, offer.total - weight * offer.total**2 / offer.reward_micro * 1e6) if offer else 0.0
    if offer and offer.standing == "invited" and offer.clip_norm == mechanism.clip_norm and rho >= spec.bounds.rho_min:
        with contextlib.suppress(errors.RoundClosed):
            task.answer(seen, Declaration(rho=rho))
            model = task.model(offer.model_version, digest=offer.model_digest)
            error = softmax(x[:, :64] @ model[:640].reshape(10, 64).T.astype(float) + model[640:], axis=1) - y
            # The gradient of a record is the product of its error and its input, and so is the norm.
            scale = (1 - noise.SLACK) * mechanism.clip_norm / np.linalg.norm(error, axis=1) / np.linalg.norm(x, axis=1)
            mean, left = (error * np.minimum(1, scale)[:, None]).T @ x / len(y), left - rho
            flat, std = np.append(mean[:, :64], mean[:, 64]), mechanism.build().noise_std(rho=rho, size=len(y))
            noised = noise.noised(flat, std=std, source=source, release=f"round/{seen}").astype("<f4")
            task.upload(seen, noised.tobytes())

print(task.ledger().model_dump_json())
