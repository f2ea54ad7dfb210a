// The server's API: what it tells of itself, and answers as they come.

/** What the server refused or could not do, as a sentence; `status` is HTTP's, 0 without any. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** What is loaded, and the defaults of a request; of several models, those of `model`. */
export async function readProps(key, model) {
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  return (await send(`props${query}`, { headers: headers(key) })).json();
}

/** The entries of the list of models. */
export async function readModels(key) {
  return (await (await send("v1/models", { headers: headers(key) })).json()).data;
}

/** Requests that are answered or wait, while any waits; 0 else. */
export async function readQueue(key) {
  const text = await (await send("metrics", { headers: headers(key) })).text();
  const sum = (name) => [...text.matchAll(new RegExp(`^localspec_requests_${name}(?:{.*})? (\\d+)`, "gm"))]
    .reduce((total, [, count]) => total + Number(count), 0);
  const waiting = sum("deferred");
  return waiting && waiting + sum("processing");
}

/**
 * The chunks of a streamed answer, each a parsed object. Throws Failure, also where the connection
 * ends before the answer does, and AbortError once `signal` is aborted.
 */
export async function* answer(request, key, signal) {
  const response = await send("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Failure(chunk.error.message);
    yield chunk;
  }
  throw new Failure("The server ended before the answer was complete.");
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  } catch (error) {
    throw lost(error);
  }
  if (!response.ok) throw new Failure(await refusal(response), response.status);
  return response;
}

/** The sentence of an error reply; of one that is not the server's own, what its status says. */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  const wait = response.headers.get("Retry-After");
  const hint = wait ? ` Ask again in ${wait} s.` : "";
  return body?.error?.message ?? `The server answered with status ${response.status}.${hint}`;
}

/** The data of server-sent events, each of one line as the server writes them. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      throw lost(error);
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}

function lost(error) {
  if (error.name === "AbortError") return error;
  return new Failure("There is no connection to the server. Is localspec serve still running?");
}
