// The server's public API. The key is kept for this tab only, and sent with every call.

const STORED = "specgate-console-key";
const TIMEOUT_MS = 15000;

let key = sessionStorage.getItem(STORED) ?? "";

/** An error that the server answered. Without a status it did not answer. */
export class CallError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Uses a key from now on. */
export function useKey(text) {
  key = text;
  if (key) sessionStorage.setItem(STORED, key);
  else sessionStorage.removeItem(STORED);
}

/** The key in use; empty if there is none. */
export function currentKey() {
  return key;
}

/** The JSON answer. Throws `CallError`. */
export async function call(method, path, body, { timeoutMs = TIMEOUT_MS, withKey = key } = {}) {
  const answer = await send(method, path, body, AbortSignal.timeout(timeoutMs), withKey);
  try {
    return (answer.headers.get("content-type") ?? "").startsWith("application/json")
      ? await answer.json()
      : await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The server's answer ended early.");
  }
}

/** Yields the events of a stream. Throws `CallError`, also for an error within the stream. */
export async function* stream(path, body, signal) {
  const answer = await send("POST", path, body, signal, key);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) throw new CallError("The stream ended early.");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        if (part === "data: [DONE]") return;
        const event = JSON.parse(part.slice(6));
        if (event.error) throw new CallError(event.error.message, 500, event.error.code);
        yield event;
      }
    }
  } finally {
    // Closing the stream ends the generation at the server.
    await reader.cancel().catch(() => undefined);
  }
}

async function send(method, path, body, signal, withKey) {
  const headers = {};
  if (withKey) headers.Authorization = `Bearer ${withKey}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The server does not answer.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // A proxy between may answer with a page; its status says enough.
  }
  if (error.code === "server_unreachable") throw new CallError(error.message);
  throw new CallError(error.message ?? `The server answered ${answer.status}.`, answer.status, error.code);
}
