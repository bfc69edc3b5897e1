// The API of this node, and the one stream that keeps the page alive.

export class Problem extends Error {
  constructor(status, text, hint) {
    super(text);
    this.status = status;
    this.hint = hint;
  }
}

async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, {
      method,
      cache: "no-store",
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0, "The node does not answer.", "");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Problem(answer.status, text.slice(0, 300) || `status ${answer.status}`, "");
  }
  if (!answer.ok) throw new Problem(answer.status, value.error, value.hint);
  return value;
}

export function query(params) {
  const given = Object.entries(params).filter(([, v]) => v !== "" && v !== null && v !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const get = (path, params = {}) => ask("GET", path + query(params));
export const post = (path, body) => ask("POST", path, body);
export const del = (path) => ask("DELETE", path);
export const part = encodeURIComponent;

// The token of whoever has signed in, for this tab and all others of this node until the browser is closed.
export function keepToken(token) {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `token=${token}; Path=/; SameSite=Strict${secure}${token ? "" : "; Max-Age=0"}`;
}

// Told of every overview, and of losing the node (null).
const listeners = new Set();
export let latest = null;

export function listen(listener) {
  listeners.add(listener);
  if (latest) listener(latest);
  return () => listeners.delete(listener);
}

export function connect() {
  const source = new EventSource("/api/v1/stream");
  source.addEventListener("overview", (event) => {
    latest = JSON.parse(event.data);
    for (const listener of [...listeners]) listener(latest);
  });
  source.onerror = () => {
    latest = null;
    for (const listener of [...listeners]) listener(null);
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}
