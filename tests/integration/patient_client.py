"""A scripted client that delivers only once it may: until then its rounds stay open."""

import threading
from dataclasses import dataclass, field
from typing import Any

from coordinators import ScriptedClient


@dataclass
class PatientClient(ScriptedClient):
    """Waits before it answers a round."""

    may_deliver: threading.Event = field(default_factory=threading.Event)

    def play(self, offer: dict[str, Any]) -> None:
        self.may_deliver.wait(240.0)
        super().play(offer)
