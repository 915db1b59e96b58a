// One streamed chat: requests, server-sent events and the figures of an answer.

/** An error with the sentence that the server gave. */
export class ServerError extends Error {}

/** The models' names. */
export async function models(key) {
  const response = await fetch("v1/models", { headers: headers(key) });
  if (!response.ok) throw new ServerError(await sentence(response));
  return (await response.json()).data.map((model) => model.id);
}

/**
 * Stream a chat. `onPart` gets {text} and {rounds} as they come; returns the figures.
 * Throws ServerError, or what fetch throws when `signal` aborts.
 */
export async function chat(body, key, signal, onPart) {
  const began = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new ServerError(await sentence(response));
  const figures = { firstMs: 0, decodeMs: 0, numTokens: 0, metrics: null, reason: null };
  let first = 0;
  for await (const event of events(response.body)) {
    if (event.error) throw new ServerError(event.error.message);
    const choice = event.choices[0];
    if (event.rounds) onPart({ rounds: event.rounds });
    if (choice?.delta.content) {
      first ||= performance.now();
      onPart({ text: choice.delta.content });
    }
    figures.reason = choice?.finish_reason ?? figures.reason;
    if (event.usage) {
      figures.numTokens = event.usage.completion_tokens;
      figures.metrics = event.metrics.speculative_decoding;
    }
  }
  figures.firstMs = (first || performance.now()) - began;
  figures.decodeMs = first ? performance.now() - first : 0;
  return figures;
}

/** Tokens per second behind the first one; null where there are too few. */
export function speed(figures) {
  return figures.numTokens > 1 && figures.decodeMs > 0
    ? ((figures.numTokens - 1) / figures.decodeMs) * 1000
    : null;
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function sentence(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.startsWith("data: ") ? part.slice(6) : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
