// An answer on the page: its text, each token coloured by its origin, and its rounds on demand.

import { drawRound } from "./tree.js";

export const ORIGINS = {
  draft: "draft",
  "runner-up": "CaPE leaf or branch",
  lookup: "copy of the text",
  "ngram-store": "n-gram store",
  target: "target",
};

/** The text of one answer. `add` the parts of a stream. */
export class Answer {
  constructor(element, tooltip) {
    this.element = element;
    this.tooltip = tooltip;
    this.text = "";
    this.rounds = [];
    this.counts = {};
    this.chosen = -1;
    this.spans = [];
    this.tokens = [];
    this.pending = "";
    this.decoder = new TextDecoder();
    element.tabIndex = 0;
    element.addEventListener("pointerover", (event) => this.point(event.target));
    element.addEventListener("pointerleave", () => this.choose(-1));
    element.addEventListener("blur", () => this.choose(-1));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  add({ text, rounds }) {
    for (const round of rounds ?? []) {
      this.rounds.push(round);
      for (const token of round.tokens) {
        const bytes = new Uint8Array(token.bytes);
        this.tokens.push({ text: this.decoder.decode(bytes, { stream: true }), origin: token.origin, round });
      }
    }
    if (text) {
      this.text += text;
      this.pending += text;
    }
    this.show();
  }

  /** Show tokens whose text has come, and without a colour what no token has: tokens come first. */
  show() {
    while (this.pending && this.tokens.length) {
      const token = this.tokens.shift();
      const text = this.pending.startsWith(token.text) ? token.text : token.text.trimStart();
      if (!text || !this.pending.startsWith(text)) continue;
      this.token(text, token);
      this.pending = this.pending.slice(text.length);
    }
    if (this.pending) this.element.append(this.pending);
    this.pending = "";
  }

  token(text, { origin, round }) {
    const span = document.createElement("span");
    span.className = `token ${origin}`;
    span.textContent = text;
    span.dataset.index = this.spans.length;
    this.spans.push({ span, origin, round });
    this.counts[origin] = (this.counts[origin] ?? 0) + 1;
    this.element.append(span);
  }

  point(target) {
    const index = target.dataset?.index;
    this.choose(index === undefined ? -1 : Number(index));
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined || !this.spans.length) return;
    event.preventDefault();
    this.choose(Math.min(Math.max(this.chosen + step, 0), this.spans.length - 1));
  }

  choose(index) {
    if (index === this.chosen) return;
    this.chosen = index;
    const chosen = this.spans[index];
    this.spans.forEach(({ span, round }, at) => {
      span.classList.toggle("chosen", at === index);
      span.classList.toggle("same-round", chosen !== undefined && round === chosen.round);
    });
    this.tooltip.hidden = chosen === undefined;
    if (chosen === undefined) return;
    drawRound(this.tooltip, chosen.round, this.rounds.indexOf(chosen.round), ORIGINS[chosen.origin]);
    place(this.tooltip, chosen.span.getBoundingClientRect());
  }
}

function place(tooltip, at) {
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.min(Math.max(at.left - 12, 8), window.innerWidth - width - 8);
  const above = at.top - height - 8;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${above > 8 ? above : at.bottom + 8}px`;
}
