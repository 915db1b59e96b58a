// The page: settings, the conversation, sending and stopping.

import { Answer, ORIGINS } from "./answer.js";
import { ServerError, chat, models, speed } from "./stream.js";

const EXAMPLES = [
  "Explain in three sentences why the sky is blue.",
  "Write a haiku about a river.",
  "List the planets with one fact about each.",
];
const at = (id) => document.getElementById(id);
const settings = at("settings");
const field = (name) => settings.elements[name];
let messages = [];
let running = null;

function make(name, className, text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function number(name) {
  const text = field(name).value.trim();
  return text === "" ? undefined : Number(text);
}

function requested(seed) {
  const speculation = { mode: field("mode").value };
  if (speculation.mode !== "off") {
    for (const name of ["shape", "stop"]) if (field(name).value) speculation[name] = field(name).value;
    if (number("max_draft_tokens") !== undefined) speculation.max_draft_tokens = number("max_draft_tokens");
  }
  const system = field("system").value.trim();
  return {
    model: field("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    max_tokens: number("max_tokens"),
    temperature: number("temperature"),
    top_p: number("top_p"),
    top_k: number("top_k"),
    seed,
    speculation,
  };
}

async function send(text) {
  at("welcome").hidden = true;
  if (messages.at(-1)?.role === "user") messages.pop(); // it was never answered
  messages.push({ role: "user", content: text });
  const asked = make("li", "user", text);
  const item = make("li", "");
  at("messages").append(asked, item);
  settings.classList.remove("open");
  at("chat").scrollTop = at("chat").scrollHeight;
  await answer(item);
}

async function answer(item) {
  item.replaceChildren();
  const element = make("div", "answer running");
  item.append(element);
  const shown = new Answer(element, at("round"));
  const seed = number("seed") ?? Math.floor(Math.random() * 2 ** 32);
  const body = requested(seed);
  running = new AbortController();
  busy(true);
  try {
    const figures = await chat({ ...body, with_rounds: true }, field("key").value, running.signal, (part) => {
      shown.add(part);
      follow();
    });
    finish(element);
    messages.push({ role: "assistant", content: shown.text });
    item.append(list(figuresOf(figures)), legend(shown.counts));
    if (field("compare").checked && body.speculation.mode !== "off") await compare(item, body, figures, shown.text);
    at("status").textContent = "The answer is complete.";
  } catch (error) {
    finish(element);
    failed(item, error, shown.text);
  } finally {
    running = null;
    busy(false);
    follow();
  }
}

function finish(element) {
  element.classList.remove("running");
  element.setAttribute("role", "group");
  element.setAttribute("aria-label", "Answer. Arrow keys show the round of each token.");
}

async function compare(item, body, figures, text) {
  const row = list([["Plain decoding: ", "running …"]]);
  item.append(row);
  let plain = "";
  const onPart = (part) => (plain += part.text ?? "");
  const other = await chat({ ...body, speculation: { mode: "off" } }, field("key").value, running.signal, onPart);
  const [fast, slow] = [speed(figures), speed(other)];
  const parts = [["Plain decoding: ", slow === null ? "too short to time" : `${slow.toFixed(0)} tokens/s`]];
  if (fast !== null && slow !== null) parts.push(["With speculation: ", `${(fast / slow).toFixed(2)}x`]);
  parts.push(["Text: ", plain === text ? "identical" : "different"]);
  row.replaceWith(list(parts));
}

function figuresOf({ firstMs, metrics, reason, ...rest }) {
  const fast = speed(rest);
  const parts = [];
  if (fast !== null) parts.push(["", `${fast.toFixed(0)} tokens/s`]);
  if (metrics?.num_spec_steps) {
    const steps = metrics.num_spec_steps + metrics.num_plain_steps;
    parts.push(["", `${((rest.numTokens - 1) / steps).toFixed(2)} tokens a round`]);
  }
  parts.push(["first token ", `${firstMs.toFixed(0)} ms`], ["", `${rest.numTokens} tokens`]);
  if (reason === "length") parts.push(["ended by ", "max new tokens"]);
  return parts;
}

function list(parts) {
  const figures = make("ul", "figures");
  for (const [name, value] of parts) {
    const row = make("li", "", name);
    row.append(make("strong", "", value));
    figures.append(row);
  }
  return figures;
}

function legend(counts) {
  const figures = make("ul", "figures legend");
  for (const [origin, name] of Object.entries(ORIGINS)) {
    if (counts[origin]) figures.append(make("li", origin, `${name} ${counts[origin]}`));
  }
  return figures;
}

function failed(item, error, text) {
  if (error.name === "AbortError") {
    if (text && messages.at(-1).role === "user") messages.push({ role: "assistant", content: text });
    item.append(list([["", "stopped"]]));
    at("status").textContent = "Stopped.";
    return;
  }
  const sentence = error instanceof ServerError ? error.message : "The server can't be reached.";
  const row = make("p", "error", sentence);
  row.setAttribute("role", "alert");
  const retry = make("button", "", "Try again");
  retry.type = "button";
  retry.addEventListener("click", () => running || answer(item));
  row.append(retry);
  item.append(row);
}

function busy(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
}

function follow() {
  const view = at("chat");
  if (view.scrollHeight - view.scrollTop - view.clientHeight < 120) view.scrollTop = view.scrollHeight;
}

function grow() {
  const prompt = at("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function submit() {
  const text = at("prompt").value.trim();
  if (!text || running) return;
  at("prompt").value = "";
  grow();
  send(text);
}

function theme(dark) {
  document.documentElement.classList.toggle("dark", dark);
}

async function loadModels() {
  try {
    const names = await models(field("key").value);
    field("model").replaceChildren(...names.map((name) => new Option(name, name)));
    at("model-name").textContent = names.length === 1 ? names[0] : `${names.length} models`;
  } catch (error) {
    at("model-name").textContent = error instanceof ServerError ? error.message : "the server can't be reached";
  }
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
at("prompt").addEventListener("input", grow);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
at("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
at("new-chat").addEventListener("click", () => {
  running?.abort();
  messages = [];
  at("messages").replaceChildren();
  at("welcome").hidden = false;
  at("prompt").focus();
});
at("open-settings").addEventListener("click", () => {
  const open = settings.classList.toggle("open");
  at("open-settings").setAttribute("aria-expanded", String(open));
});
at("theme").addEventListener("click", () => theme(!document.documentElement.classList.contains("dark")));
settings.addEventListener("submit", (event) => event.preventDefault());
field("key").addEventListener("change", () => {
  sessionStorage.setItem("slipstream key", field("key").value);
  loadModels();
});
for (const text of EXAMPLES) {
  const button = make("button", "", text);
  button.type = "button";
  button.addEventListener("click", () => running || send(text));
  at("examples").append(button);
}
field("key").value = sessionStorage.getItem("slipstream key") ?? "";
theme(matchMedia("(prefers-color-scheme: dark)").matches);
loadModels();
