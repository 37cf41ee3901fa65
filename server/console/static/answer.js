// One answer as it comes: its text with the origin of every token, and its figures.

import { stream } from "./api.js";
import { colourOf, swatch } from "./charts.js";
import { number, percent } from "./page.js";

/**
 * Asks for a chat's answer and writes it into `element`, its figures into `figuresElement`.
 * `method` is empty for the server's own choice. Returns {text, tokens, firstMs, lastMs, stats}.
 */
export async function ask({ messages, maxTokens, temperature, method, k }, element, figuresElement, signal) {
  const body = {
    messages, max_tokens: maxTokens, temperature,
    // Tokens come one by one only with their log probabilities.
    logprobs: true, stream: true, stream_options: { continuous_spec_stats: true },
  };
  if (method) body.spec_decode = { proposer: method, ...(k ? { num_speculative_tokens: k } : {}) };
  const state = { text: "", tokens: 0, firstMs: null, lastMs: null, stats: null, byProposer: {} };
  for await (const event of stream("v1/chat/completions", body, signal)) {
    for (const choice of event.choices) add(element, state, choice);
    if (state.stats) figuresElement.replaceChildren(...figures(state));
  }
  return state;
}

/** Tokens per second after the first one; null for an answer of one token. */
export function speed(state) {
  const seconds = (state.lastMs - state.firstMs) / 1000;
  return seconds > 0 ? (state.tokens - 1) / seconds : null;
}

function add(element, state, choice) {
  const tokens = choice.logprobs?.content ?? [];
  const stats = choice.speculative_decoding;
  if (!tokens.length && !stats) return;
  const step = stats ? stepOf(state, stats) : { steps: 0, accepted: 0, rejected: 0 };
  state.lastMs = performance.now();
  state.firstMs ??= state.lastMs;
  const text = choice.delta.content ?? choice.delta.reasoning ?? "";
  state.text += text;
  // Where a character has several tokens, and at the end, the tokens are not the text: one piece.
  const pieces = tokens.map(({ token }) => token);
  const exact = pieces.join("") === text;
  if (exact) element.append(...pieces.map((piece, i) => tokenSpan(piece, i, step)));
  else if (text) element.append(tokenSpan(text, step.accepted, { ...step, steps: 2 }));
  state.tokens += tokens.length;
  if (step.rejected) element.append(rejection(step));
  element.scrollTop = element.scrollHeight;
}

/** What the proposers did since the last chunk. */
function stepOf(state, stats) {
  const step = { steps: 0, accepted: 0, rejected: 0, who: "" };
  for (const [name, counts] of Object.entries(stats.by_proposer)) {
    const before = state.byProposer[name] ?? { drafts: 0, drafted: 0, accepted: 0 };
    if (counts.drafts === before.drafts) continue;
    const accepted = counts.accepted - before.accepted;
    step.steps += counts.drafts - before.drafts;
    step.accepted += accepted;
    step.rejected += counts.drafted - before.drafted - accepted;
    step.who = name;
  }
  state.byProposer = stats.by_proposer;
  state.stats = stats;
  return step;
}

function rejection(step) {
  const mark = Object.assign(document.createElement("span"), { className: "rejected", textContent: `✗${step.rejected}`,
    title: `${step.rejected} tokens drafted by ${step.who} were rejected` });
  // The figures beside the text have their sum.
  mark.setAttribute("aria-hidden", "true");
  return mark;
}

// Accepted drafts come first in a step. In a chunk of several steps their places are not known.
function tokenSpan(token, i, step) {
  const span = Object.assign(document.createElement("span"), { className: "token", textContent: token });
  if (step.steps > 1 && step.accepted) {
    span.classList.add("mixed");
    span.title = `${step.accepted} of these tokens were drafted by ${step.who} and accepted`;
  } else if (i < step.accepted) {
    span.classList.add("drafted");
    span.dataset.who = step.who;
    span.style.setProperty("--who", `var(${colourOf(step.who)})`);
    span.title = `drafted by ${step.who} and accepted`;
  } else {
    span.title = "the model's own";
  }
  return span;
}

function figures(state) {
  const { stats } = state;
  const parts = [`${state.tokens} tokens`, `${number(speed(state))} tokens/s`, `${number(stats.mean_tokens_per_step, 2)} tokens per step`];
  const drafts = Object.entries(stats.by_proposer);
  if (drafts.length) parts.push(`accepted ${percent(stats.draft_acceptance_rate)} of the drafts: `);
  return [parts.join(" · "), ...drafts.flatMap(([name, counts]) => [swatch(name), `${name} ${counts.accepted} of ${counts.drafted} `])];
}
