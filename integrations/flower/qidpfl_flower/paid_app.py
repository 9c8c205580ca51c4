"""`paid_app`: an existing ClientApp that takes part in the rounds of `PaidStrategy`, unchanged.

The wrapper answers the strategy. It calls the app for the training only, clips the update and adds the noise. It
refuses the message `evaluate`: an accuracy on the records of a node would be an unprotected release.
"""

from collections.abc import Callable
from logging import Logger, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from qidpfl_client.errors import UntrustedCoordinator
from qidpfl_client.noise import NoiseSource, SystemNoise
from qidpfl_client.owner import Owner
from qidpfl_client.participant.program import ProgramRecords
from qidpfl_shared.protocol.messages import RoundOffer
from qidpfl_shared.protocol.task_spec import TaskSpec

from .app_loading import Config
from .bridge import AppProgram
from .local_app import LocalApp
from .node_messages import STATE, TERMS, UPDATE, NodeAnswer, NodeState
from .paid_node import PrivacySeller
from .parameters import flat_parameters
from .records import asked_labels, records_of_labels

_log: Logger = getLogger("flwr")


def paid_app(
    app: Any,
    *,
    labels: Callable[..., Any],
    owner: Owner | Callable[[Any], Owner] | None = None,
    noise: NoiseSource | None = None,
    run_config: Config | None = None,
) -> Any:
    """A ClientApp around an app (a ClientApp, a client_fn or a NumPyClient).

    Args:
        app: the app; it is called for the training.
        labels: returns the labels of the records that a node trains on; it may take the context of Flower.
        owner: the limits, prices and privacy value of the owner, or a function of Flower's context that returns them;
            the defaults are those of `qidpfl-client`.
        noise: where the noise comes from; the default is the entropy of the operating system.
        run_config: what the app finds in its run configuration where the run itself says nothing else; a simulation
            that is started from Python has none.
    """
    paid = ClientApp()

    def seller(context: Any) -> PrivacySeller:
        own = owner(context) if callable(owner) else owner
        return PrivacySeller(owner=own or Owner(), noise=noise or SystemNoise())

    def profile(message: Any, context: Any) -> dict[str, Any]:
        spec = TaskSpec.read(str(message.content[TERMS]["spec"]))
        known = _state(context)
        if known is None:
            program, records = _program(app, _configured(context, run_config), spec, {}, labels)
            known = seller(context).profile(spec, program, records)
            _keep(context, known)
        elif known.spec_digest != spec.digest:
            raise UntrustedCoordinator("the server has changed the task: this node has a profile in another one")
        return {TERMS: ConfigRecord({"profile": known.profile.model_dump_json()})}

    def train(message: Any, context: Any) -> dict[str, Any]:
        state = _state(context)
        if state is None:
            raise UntrustedCoordinator("the server asks for an update before it has asked for a profile")
        spec = TaskSpec.read(state.spec)
        offer = RoundOffer.model_validate_json(str(message.content[TERMS]["offer"]))
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        model = flat_parameters(arrays, spec.layout).astype(np.float32)
        settings = dict(message.content["config"]) if "config" in message.content else {}
        program, records = _program(app, _configured(context, run_config), spec, settings, labels)
        answer, state = seller(context).answer(state, offer, model, program, records)
        _keep(context, state)
        return _answer_records(answer)

    paid.query()(_answering(profile))
    paid.train()(_answering(train))
    return paid


def _answering(answer: Callable[[Any, Any], dict[str, Any]]) -> Callable[[Any, Any], Any]:
    """Reply with the records of `answer`, or with a refusal if it fails.

    Flower would send the text of an error to the server, and that of an app may quote its records. It stays here.
    """

    def reply(message: Any, context: Any) -> Any:
        try:
            content = answer(message, context)
        except Exception:
            _log.exception("this node does not answer; the server only learns that it declines")
            content = {TERMS: ConfigRecord({"declined": "failed"})}
        return Message(content=RecordDict(content), reply_to=message)

    return reply


def _configured(context: Any, run_config: Config | None) -> Any:
    """The context of the node for the app, with the same state. Flower refuses a changed configuration."""
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=context.node_config,
        state=context.state,
        run_config={**(run_config or {}), **context.run_config},
    )


def _program(
    app: Any, context: Any, spec: TaskSpec, settings: Config, labels: Callable[..., Any]
) -> tuple[AppProgram, ProgramRecords]:
    """The app as a program, and its records; the context is that of the node."""
    called = LocalApp.of(app, context=context, train_config=settings)
    return AppProgram(called, spec), records_of_labels(asked_labels(labels, context), wanted=spec.workload.labels)


def _answer_records(answer: NodeAnswer) -> dict[str, Any]:
    if answer.update is None:
        return {TERMS: ConfigRecord({"declined": answer.declined or ""})}
    return {TERMS: ConfigRecord({"rho": answer.rho}), UPDATE: ArrayRecord({UPDATE: Array(answer.update)})}


def _state(context: Any) -> NodeState | None:
    if STATE not in context.state:
        return None
    return NodeState.model_validate_json(str(context.state[STATE]["state"]))


def _keep(context: Any, state: NodeState) -> None:
    context.state[STATE] = ConfigRecord({"state": state.model_dump_json()})
