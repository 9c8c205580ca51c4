"""The least that a round can cost with FastAPI: the four requests of a round without disk, checks, budgets or payments.

`python benchmarks/floor.py CLIENTS DIMENSION` prints its port. The model is the sum of the updates times a constant,
computed while they arrive, so that a round costs one pass over every update.
"""

import asyncio
import sys
from socket import socket
from typing import Annotated

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Request, Response

_BASE = "/v1/tasks/{task_id}"


class Floor:
    """The state of one endless task."""

    def __init__(self, clients: int, dimension: int) -> None:
        self._clients = clients
        self.model = np.zeros(dimension, dtype="<f4").tobytes()
        self._total = np.zeros(dimension)
        self._updates = 0
        self.number = 1
        self.opened = asyncio.Condition()

    async def add(self, update: bytes) -> None:
        """Add an update. The last one of a round opens the next round."""
        self._total += np.frombuffer(update, dtype="<f4")
        self._updates += 1
        if self._updates < self._clients:
            return
        self.model = (self._total / self._clients).astype("<f4").tobytes()
        self._total[:] = 0
        self._updates = 0
        self.number += 1
        async with self.opened:
            self.opened.notify_all()


def application(floor: Floor) -> FastAPI:
    app = FastAPI()

    @app.get(f"{_BASE}/rounds/current")
    async def announcement(after: str, wait: float) -> dict[str, object]:
        known = int(after.split(".")[0])
        async with floor.opened:
            await floor.opened.wait_for(lambda: floor.number > known)
        return {"task_state": "training", "round": {"round_number": floor.number, "attempt": 1}}

    @app.put(f"{_BASE}/rounds/{{number}}/budget")
    async def budget(number: int, rho: Annotated[float, Body(embed=True)]) -> dict[str, object]:
        return {"round_number": number, "rho": rho}

    @app.get(f"{_BASE}/models/{{version}}")
    async def model(version: int) -> Response:
        return Response(floor.model, media_type="application/octet-stream")

    @app.put(f"{_BASE}/rounds/{{number}}/update")
    async def update(number: int, request: Request) -> dict[str, object]:
        await floor.add(await request.body())
        return {"round_number": number}

    return app


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


def main() -> None:
    clients, dimension = map(int, sys.argv[1:])
    config = uvicorn.Config(application(Floor(clients, dimension)), port=0, log_level="error", access_log=False)
    _Server(config).run()


if __name__ == "__main__":
    main()
