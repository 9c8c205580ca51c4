// The first requests of a visit. This module runs before the chart libraries, so that the coordinator answers while
// the browser compiles them.

import { get, takeToken } from "./api.js";
import { PARTS, TaskData } from "./data.js";

// What the address names: {taskId, name, clientId}; null for the list of tasks.
export function address() {
  const [, kind, taskId, name = "market", clientId] = location.hash.split("/");
  return kind === "t" && PARTS[name] ? { taskId, name, clientId } : null;
}

function start() {
  if (!takeToken()) return {};
  const shown = address();
  const identity = get("/v1/me");
  const data = shown && new TaskData(shown.taskId);
  // A page takes what is being read here. An error is thrown there, too.
  for (const asked of [identity, data?.begin(shown)]) asked?.catch(() => {});
  return { identity, data };
}

// Each is for the first page only.
const first = start();

export function firstIdentity() {
  const { identity } = first;
  first.identity = null;
  return identity;
}

export function firstData(taskId) {
  const { data } = first;
  first.data = null;
  return data?.taskId === taskId ? data : null;
}
