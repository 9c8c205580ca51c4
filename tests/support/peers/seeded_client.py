"""A small correct client without any package of this project, and what happens to it with one bug.

usage: python seeded_client.py URL RECORDS.csv BUG < FILE_WITH_THE_ENROLMENT_CODE

`none` is the correct client. It keeps nothing on disk.
"""

import base64
import hashlib
import http.client
import json
import secrets
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
VALUE, HISTOGRAM_RHO, LIFETIME = 1.0, 0.1, 0.4
BUGS = (
    *("wrong_sign", "half_noise", "no_noise", "double_noise", "same_noise", "renoised_retry", "renoised_histogram"),
    *("exact_histogram", "uneven_histogram", "no_digest", "wrong_digest", "half_budget", "above_rho_max", "above_caps"),
    *("takes_every_offer", "answers_uninvited", "uploads_to_closed", "repeats_closed", "announced_clip_norm"),
    *("any_model", "other_model", "new_attempt", "ignores_requirements", "unpinned_spec", "new_key", "impatient"),
    *("clips_the_mean", "sum_of_gradients", "first_model", "strict_fields", "gives_up"),
)


class Client:
    """The client; `bug` names what it does wrong."""

    def __init__(self, url: str, records: str, bug: str, code: str) -> None:
        data = np.loadtxt(records, delimiter=",")
        self.x, self.labels = np.insert(data[:, :64], 64, 1.0, axis=1), data[:, 64].astype(int)
        self.url, self.bug, self.code = urlsplit(url), bug, code
        self.task, self.token, self.key = f"/v1/tasks/{code.split('.')[0]}", code, secrets.token_urlsafe(20)
        self.rng = np.random.default_rng(7 if bug == "same_noise" else None)
        self.spent = HISTOGRAM_RHO
        self.models: dict[int | str, Any] = {}
        self.sent: dict[int, bytes] = {}

    def once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=60)
        try:
            connection.request(method, self.task + path, body, {"Authorization": f"Bearer {self.token}"} | headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, message: Any = None, make: Any = None) -> tuple[int, bytes]:
        """Send a request until there is an answer; `make` returns body and headers of each attempt."""
        while True:
            body = None if message is None else json.dumps(message() if callable(message) else message).encode()
            headers = {"Content-Type": "application/json"}
            if make is not None:
                body, headers = make()
            pause = 0.3
            try:
                status, told, data = self.once(method, path, body, headers)
                if status not in (429, 503):
                    return status, data
                pause = 0.1 if self.bug == "impatient" else float(told["Retry-After"])
            except (http.client.HTTPException, OSError):
                pass
            if self.bug == "gives_up":
                sys.exit("no answer")
            time.sleep(pause)

    def join(self) -> None:
        view = json.loads(self.call("GET", "")[1])
        self.spec = view["spec"]
        if self.bug == "strict_fields" and "field_of_a_later_version" in view:
            sys.exit("unknown field")
        if (
            set(self.spec["requires"]) - {"mechanism.gradient_once", "answer.rho"}
            and self.bug != "ignores_requirements"
        ):
            sys.exit("unknown requirement")
        # The specs of the kit have no number whose text differs between Python and RFC 8785, except these.
        text = json.dumps(_whole(self.spec), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        digest = hashlib.sha256(text.replace("1e-05", "0.00001").encode()).hexdigest()
        if digest != view["spec_digest"] and self.bug != "unpinned_spec":
            sys.exit("the spec does not have its digest")

        def enrolment() -> Any:
            key = secrets.token_urlsafe(20) if self.bug == "new_key" else self.key
            return {"enrolment_code": self.code, "enrolment_key": key}

        status, answer = self.call("POST", "/clients", enrolment)
        if status != 201:
            sys.exit(f"enrolment: {status}")
        self.token = json.loads(answer)["token"]
        kept = self.profile()
        status, _ = self.call(
            "PUT", "/clients/me/profile", lambda: self.profile() if self.bug == "renoised_histogram" else kept
        )
        if status != 200:
            sys.exit(f"profile: {status}")

    def profile(self) -> Any:
        counts, size = np.bincount(self.labels, minlength=10), len(self.labels)
        if self.bug != "exact_histogram":
            noisy = counts + self.rng.standard_normal(10) / HISTOGRAM_RHO**0.5
            counts = np.floor(np.maximum(noisy, 0) * size / np.maximum(noisy, 0).sum()).astype(int)
            counts[0] += size - counts.sum() + (self.bug == "uneven_histogram")
        profile = {"label_counts": counts.tolist(), "size": size, "privacy_value": VALUE}
        return profile | {"histogram_rho": HISTOGRAM_RHO, "lifetime_rho": LIFETIME}

    def play(self) -> None:
        seen = "0.0"
        while True:
            status, data = self.call("GET", f"/rounds/current?after={seen}&wait=5")
            news = json.loads(data) if status == 200 else {}
            if news.get("task_state") in ("finished", "failed", "stopped"):
                return
            if offer := news.get("round"):
                seen = f"{offer['round_number']}.{offer['attempt']}"
                if offer["standing"] == "invited" or self.bug == "answers_uninvited":
                    self.answer(offer)

    def budget(self, offer: Any) -> float:
        total, reward = offer["total"], offer["reward_micro"] / 1e6
        best = total - self.spec["game"]["privacy_weight"] * VALUE * total**2 / reward
        if self.bug == "half_budget":
            best /= 2
        if self.bug == "takes_every_offer":
            best = abs(best)
        limits = [best]
        limits += [] if self.bug == "above_rho_max" else [offer["rho_max"]]
        limits += [] if self.bug == "above_caps" else [LIFETIME - self.spent]
        return float(min(limits))

    def answer(self, offer: Any) -> None:
        number, norm = offer["round_number"], self.spec["privacy"]["mechanism"]["clip_norm"]
        if offer["clip_norm"] != norm:
            if self.bug != "announced_clip_norm":
                sys.exit("the announcement contradicts the task")
            norm = offer["clip_norm"]
        if number in self.sent and self.bug not in ("other_model", "new_attempt"):
            return
        known = self.models.setdefault(number, offer["model_digest"])
        if known != offer["model_digest"] and self.bug != "other_model":
            sys.exit("another model in the same round")
        rho = self.budget(offer)
        if rho < self.spec["bounds"]["rho_min"]:
            return
        status, _ = self.call("PUT", f"/rounds/{number}/budget", {"rho": rho})
        if status != 200 and not (status == 410 and self.bug == "uploads_to_closed"):
            return
        status, data = self.call("GET", f"/models/{offer['model_version']}")
        model = np.frombuffer(data, "<f4").astype(float) if status == 200 else np.zeros(650)
        digest = hashlib.sha256(model.astype("<f4").tobytes()).hexdigest()
        if digest != offer["model_digest"] and self.bug not in ("any_model", "uploads_to_closed"):
            sys.exit("the model is not the announced one")
        self.spent += rho
        self.upload(number, model, norm, rho)

    def upload(self, number: int, model: Vector, norm: float, rho: float) -> None:
        if self.bug == "first_model":
            model = self.models.setdefault("first", model)
        self.sent[number] = self.update(model, norm, rho)

        def body() -> tuple[bytes, dict[str, str]]:
            data = self.update(model, norm, rho) if self.bug == "renoised_retry" else self.sent[number]
            digest = base64.b64encode(hashlib.sha256(data[4:] if self.bug == "wrong_digest" else data).digest())
            headers = {"Content-Type": "application/octet-stream", "Content-Digest": f"sha-256=:{digest.decode()}:"}
            if self.bug == "no_digest":
                del headers["Content-Digest"]
            return data, headers

        status, _ = self.call("PUT", f"/rounds/{number}/update", make=body)
        for _ in range(10 if status == 410 and self.bug == "repeats_closed" else 0):
            self.call("PUT", f"/rounds/{number}/update", make=body)

    def update(self, model: Vector, norm: float, rho: float) -> bytes:
        size = len(self.labels)
        scores = self.x @ np.insert(model[:640].reshape(10, 64), 64, model[640:], axis=1).T
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[self.labels]
        lengths = np.linalg.norm(errors, axis=1) * np.linalg.norm(self.x, axis=1)
        scale = np.ones(size) if self.bug == "clips_the_mean" else np.minimum(1, norm / np.maximum(lengths, 1e-12))
        mean = (errors * scale[:, None]).T @ self.x / size
        if self.bug == "clips_the_mean":
            mean *= min(1, norm / np.linalg.norm(mean))
        mean *= {"wrong_sign": -1, "sum_of_gradients": size}.get(self.bug, 1)
        factor = {"half_noise": 0.5, "no_noise": 0.0, "double_noise": 2.0}.get(self.bug, 1.0)
        rng = np.random.default_rng(7) if self.bug == "same_noise" else self.rng
        noise = factor * 2 * norm / size / np.sqrt(2 * rho) * rng.standard_normal(650)
        update: bytes = (np.append(mean[:, :64], mean[:, 64]) + noise).astype("<f4").tobytes()
        return update


def _whole(value: Any) -> Any:
    """Whole numbers as RFC 8785 writes them."""
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


if __name__ == "__main__":
    client = Client(sys.argv[1], sys.argv[2], sys.argv[3], sys.stdin.readline().strip())
    client.join()
    client.play()
