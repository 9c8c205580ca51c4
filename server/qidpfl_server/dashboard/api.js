// The public API: requests with the operator's token, and the live feed of a task.

const KEY = "qidpfl.token";
const SILENCE_MS = 40000;
const FIRST_BYTE_MS = 10000;
const SILENT_STREAMS = 2;
const POLL_MS = 3000;
const POLLS_PER_STREAM = 20;

// The token comes in the fragment, which no server sees. It is removed from the address at once.
export function takeToken() {
  const found = /^#token=([^&]+)&?(.*)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, decodeURIComponent(found[1]));
    history.replaceState(null, "", `${location.pathname}#${found[2] || "/"}`);
  }
  return sessionStorage.getItem(KEY);
}

export const setToken = (token) => sessionStorage.setItem(KEY, token);
export const dropToken = () => sessionStorage.removeItem(KEY);
const authorization = () => ({ Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` });

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.detail ? `${problem.title}: ${problem.detail}` : problem?.title ?? `status ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

async function answered(response) {
  if (response.ok) return response;
  throw new ApiError(response.status, await response.json().catch(() => null));
}

export async function get(path) {
  return (await answered(await fetch(path, { headers: authorization(), cache: "no-store" }))).json();
}

export async function getBlob(path) {
  return (await answered(await fetch(path, { headers: authorization(), cache: "no-store" }))).blob();
}

export async function send(method, path, body) {
  const headers = { ...authorization(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
  const response = await answered(await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) }));
  return response.status === 204 ? null : response.json();
}

// Follows /events. Calls onEvent(event), onChange() for a change without an event, onState(word).
// A stream that is answered without a byte twice in a row is held back on its way: then the feed asks instead.
export class Feed {
  constructor(taskId, { after, onEvent, onChange, onState }) {
    Object.assign(this, { taskId, after, onEvent, onChange, onState });
    this.stopped = false;
    this.ended = false;
    this.silent = 0;
    this.polls = 0;
    this.run();
  }

  stop() {
    this.stopped = true;
    this.controller?.abort();
  }

  async run() {
    let pause = 500;
    while (!this.stopped) {
      let heard = false;
      try {
        heard = this.silent >= SILENT_STREAMS ? await this.poll() : await this.stream();
      } catch (error) {
        if (this.stopped) return;
        if (error instanceof ApiError && [401, 403, 404].includes(error.status)) return this.onState("denied");
      }
      if (this.stopped) return;
      if (this.ended) return this.onState("ended");
      if (heard) pause = 500;
      if (heard && this.silent >= SILENT_STREAMS) continue;
      this.onState("reconnecting");
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(2 * pause, 4000);
    }
  }

  // Returns whether anything was received.
  async stream() {
    this.controller = new AbortController();
    const headers = { ...authorization(), "Last-Event-ID": String(this.after) };
    const response = await fetch(`/v1/tasks/${this.taskId}/events`, { headers, signal: this.controller.signal, cache: "no-store" });
    let received = false;
    try {
      const reader = (await answered(response)).body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const watchdog = setTimeout(() => this.controller.abort(), received ? SILENCE_MS : FIRST_BYTE_MS);
        const { value, done } = await reader.read().finally(() => clearTimeout(watchdog));
        if (done) return received;
        if (!received) this.onState("live");
        received = true;
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        blocks.forEach((block) => this.take(block));
      }
    } finally {
      this.silent = received ? 0 : this.silent + 1;
    }
  }

  take(block) {
    const data = block.split("\n").find((line) => line.startsWith("data: "));
    if (!data) return this.onChange();
    const event = JSON.parse(data.slice(6));
    this.after = event.id;
    this.ended ||= ["task.finished", "task.failed", "task.stopped"].includes(event.kind);
    if (event.kind === "task.resumed") this.ended = false;
    this.onEvent(event);
  }

  async poll() {
    const progress = await get(`/v1/tasks/${this.taskId}/progress`);
    this.onState("polling");
    this.ended = ["finished", "failed", "stopped"].includes(progress.task_state);
    this.onChange(true);
    if (!this.ended) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    // Now and then it tries to stream again: what held the stream back may be gone.
    this.polls += 1;
    if (this.polls % POLLS_PER_STREAM === 0) this.silent = SILENT_STREAMS - 1;
    return true;
  }
}
