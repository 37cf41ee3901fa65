// Two answers to one message, each under its own method, with the origin of every token.

import { stream } from "./api.js";
import { colourOf, swatch } from "./charts.js";
import { byId, number, percent, say, setOptions } from "./page.js";

const SIDES = ["left", "right"];
let running = null;

/** Connects the form. */
export function connect() {
  const form = byId("compare");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    running = new AbortController();
    setRunning(form, true);
    try {
      await compare(form, running.signal);
    } catch (error) {
      const stopped = error.name === "AbortError";
      say(byId("compare-result"), stopped ? "Stopped." : error.message, !stopped);
    } finally {
      running = null;
      setRunning(form, false);
    }
  });
  byId("stop").addEventListener("click", () => running?.abort());
}

/** Fills the choice of methods. */
export function setMethods(names) {
  const [first, second] = [names.includes("none") ? "none" : names[0], names.find((name) => name !== "none")];
  setOptions(byId("compare").elements.left, names, first);
  setOptions(byId("compare").elements.right, names, second);
}

function setRunning(form, is) {
  form.querySelector("button[type=submit]").disabled = is;
  byId("stop").disabled = !is;
}

async function compare(form, signal) {
  const methods = SIDES.map((side) => form.elements[side].value);
  SIDES.forEach((side, i) => {
    byId(`${side}-title`).textContent = methods[i];
    byId(side).replaceChildren();
    byId(`${side}-figures`).textContent = "";
  });
  const done = [];
  for (const [i, side] of SIDES.entries()) {
    say(byId("compare-result"), `${methods[i]} answers …`);
    done.push(await answer(form, methods[i], side, signal));
  }
  say(byId("compare-result"), verdict(methods, done, Number(form.elements.temperature.value)));
}

async function answer(form, method, side, signal) {
  const body = {
    messages: [{ role: "user", content: form.elements.message.value }],
    max_tokens: Number(form.elements.max_tokens.value), temperature: Number(form.elements.temperature.value),
    // Tokens come one by one only with their log probabilities.
    logprobs: true, stream: true, stream_options: { continuous_spec_stats: true },
    spec_decode: { proposer: method },
  };
  const state = { text: "", tokens: 0, firstMs: null, lastMs: null, stats: null, byProposer: {} };
  for await (const event of stream("v1/chat/completions", body, signal)) {
    for (const choice of event.choices) add(byId(side), state, choice);
    if (state.stats) byId(`${side}-figures`).replaceChildren(...figures(state));
  }
  return state;
}

function add(element, state, choice) {
  const tokens = choice.logprobs?.content ?? [];
  const stats = choice.speculative_decoding;
  if (!tokens.length && !stats) return;
  const step = stats ? stepOf(state, stats) : { steps: 0, accepted: 0, rejected: 0 };
  state.lastMs = performance.now();
  state.firstMs ??= state.lastMs;
  const text = choice.delta.content ?? "";
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
  // The figures above the text have their sum.
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

function speed(state) {
  const seconds = (state.lastMs - state.firstMs) / 1000;
  return seconds > 0 ? (state.tokens - 1) / seconds : null;
}

function figures(state) {
  const { stats } = state;
  const parts = [`${state.tokens} tokens`, `${number(speed(state))} tokens/s`, `${number(stats.mean_tokens_per_step, 2)} tokens per step`];
  const drafts = Object.entries(stats.by_proposer);
  if (drafts.length) parts.push(`accepted ${percent(stats.draft_acceptance_rate)} of the drafts: `);
  return [parts.join(" · "), ...drafts.flatMap(([name, counts]) => [swatch(name), `${name} ${counts.accepted} of ${counts.drafted} `])];
}

function verdict([leftName, rightName], [left, right], temperature) {
  const [slow, fast] = [speed(left), speed(right)];
  const times = slow && fast ? `${rightName} is ${(fast / slow).toFixed(2)} times as fast as ${leftName}.` : "";
  if (left.text === right.text) return `${times} Both wrote the same text.`;
  const why = temperature ? "as sampling does" : "although the temperature is 0: two tokens may have been equally likely";
  return `${times} The texts differ, ${why}.`;
}
