"""Call the client of a Flower app in this process, as Flower's own runtime does: a message in, a message out.

A `ClientApp` with the Message API gets the records `arrays` and `config`. An app made from a `client_fn`, a `Client` or
a `NumPyClient` gets the same as the instructions of `fit`. Of the answer only the parameters are used: metrics, which
are unprotected releases, stay here.
"""

import inspect
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres

from qidpfl_client.errors import ClientError, Misconfigured
from qidpfl_shared.plugin_loader import described
from qidpfl_shared.protocol.wire import TensorLayout, Vector32, unflatten

from .app_loading import Config
from .parameters import BATCH_NORM_BUFFERS, REMEDY, Flat, flat_parameters

# An app that is called in process has no SuperLink: any numbers will do.
_RUN_ID, _SERVER_ID, _NODE_ID = 1, 1, 2
_TIME_TO_LIVE_S = 7 * 24 * 3600.0


def new_context(node_config: Config, run_config: Config) -> Any:
    """A context of Flower without any state."""
    return Context(
        run_id=_RUN_ID, node_id=_NODE_ID, node_config=dict(node_config), state=RecordDict(), run_config=dict(run_config)
    )


@dataclass(frozen=True)
class AppAnswer:
    """The parameters after the training of an app, and how many records it says it has used; None: it says nothing."""

    parameters: Flat
    examples: int | None


@dataclass
class LocalApp:
    """The client of a Flower app. Its context lives as long as this object, as its state does in Flower."""

    app: Any
    context: Any
    train_config: Config = field(default_factory=dict)

    @classmethod
    def of(cls, found: Any, *, context: Any, train_config: Config | None = None) -> "LocalApp":
        """An app from what its module has: a ClientApp, a client_fn, a client, or the class of one.

        Raises `Misconfigured` for anything else.
        """
        return cls(app=as_client_app(found), context=context, train_config=train_config or {})

    def train(self, model: Vector32, layout: TensorLayout, *, config: Config) -> AppAnswer:
        """One call of the app's training. Raises `ClientError` if the app fails, or returns no model of the task."""
        tensors = unflatten(vector=model, layout=layout)
        settings: Config = {**self.train_config, **config}
        # Only the private field says which of its two interfaces an app has.
        asks_fit = getattr(self.app, "_call", None) is not None
        content = _fit_instructions(tensors, settings) if asks_fit else _train_instructions(tensors, settings)
        try:
            reply = self.app(_message(content), self.context)
            returned, examples = _fit_result(reply) if asks_fit else _train_result(reply)
        except ClientError:
            raise
        except Exception as error:
            raise ClientError(_failure(error)) from error
        return AppAnswer(parameters=flat_parameters(returned, layout), examples=examples)


def as_client_app(found: Any) -> Any:
    """A ClientApp that calls this object. Raises `Misconfigured` if it is no client of Flower."""
    if isinstance(found, ClientApp):
        return found
    if inspect.isclass(found) and issubclass(found, Client | NumPyClient):
        made: Any = found
        return ClientApp(client_fn=lambda context: made().to_client())
    if isinstance(found, Client | NumPyClient):
        return ClientApp(client_fn=lambda context: found.to_client())
    if inspect.isfunction(found):
        try:
            return ClientApp(client_fn=found)
        except ValueError as error:
            raise Misconfigured(f"{found.__name__} is no client_fn: {described(error)}") from None
    raise Misconfigured(
        f"a {type(found).__name__} is no client of Flower: name a ClientApp, a client_fn or a NumPyClient"
    )


def _message(content: Any) -> Any:
    metadata = Metadata(
        run_id=_RUN_ID,
        message_id="",
        src_node_id=_SERVER_ID,
        dst_node_id=_NODE_ID,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=_TIME_TO_LIVE_S,
        message_type="train",
    )
    return Message(content=content, metadata=metadata)


def _train_instructions(tensors: Mapping[str, Vector32], settings: Config) -> Any:
    arrays = ArrayRecord({name: Array(np.ascontiguousarray(tensor)) for name, tensor in tensors.items()})
    return RecordDict({"arrays": arrays, "config": ConfigRecord(dict(settings))})


def _fit_instructions(tensors: Mapping[str, Vector32], settings: Config) -> Any:
    parameters = ndarrays_to_parameters(list(tensors.values()))
    return fitins_to_recorddict(FitIns(parameters=parameters, config=dict(settings)), keep_input=True)


def _train_result(reply: Any) -> tuple[dict[str, Any], int | None]:
    """The parameters and the number of records of an answer in the Message API."""
    _require_content(reply)
    records = reply.content.array_records
    if len(records) != 1:
        raise ClientError(f"the app must return one record of arrays, and it returned {len(records)}")
    counts = [metrics["num-examples"] for metrics in reply.content.metric_records.values() if "num-examples" in metrics]
    arrays = {name: array.numpy() for name, array in next(iter(records.values())).items()}
    return arrays, int(counts[0]) if counts else None


def _fit_result(reply: Any) -> tuple[list[Any], int | None]:
    """The same of the answer of a `fit`."""
    _require_content(reply)
    result = recorddict_to_fitres(reply.content, keep_input=True)
    if int(result.status.code.value) != 0:
        raise ClientError(f"the app failed: {result.status.message}")
    return parameters_to_ndarrays(result.parameters), int(result.num_examples)


def _require_content(reply: Any) -> None:
    if not isinstance(reply, Message):
        raise ClientError(f"the app returned a {type(reply).__name__}, not a message")
    if reply.has_error():
        raise ClientError(f"the app failed: {reply.error.reason}")


def _failure(error: Exception) -> str:
    """One line that says where the app failed, and what to do if batch normalisation is the reason."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = f"the app failed in {frame.filename}:{frame.lineno}: {described(error)}"
    if any(buffer in str(error) for buffer in BATCH_NORM_BUFFERS):
        line += f". A task has trained parameters only: {REMEDY}"
    return line
