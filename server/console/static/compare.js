// Answers to one message under two methods, several times, and how much faster the right one is.

import { ask, speed } from "./answer.js";
import { byId, say, setOptions } from "./page.js";

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
  SIDES.forEach((side, i) => (byId(`${side}-title`).textContent = methods[i]));
  byId("compared").hidden = false;
  const count = Number(form.elements.runs.value);
  const runs = [];
  for (let run = 0; run < count; run += 1) {
    const states = [];
    // In turn: a machine that gets slower meanwhile harms both sides.
    for (const i of run % 2 ? [1, 0] : [0, 1]) {
      say(byId("compare-result"), `Run ${run + 1} of ${count}: ${methods[i]} answers …`);
      byId(SIDES[i]).replaceChildren();
      byId(`${SIDES[i]}-figures`).textContent = "";
      states[i] = await answer(form, methods[i], SIDES[i], signal);
    }
    runs.push(states);
  }
  say(byId("compare-result"), verdict(methods, runs, Number(form.elements.temperature.value)));
}

function answer(form, method, side, signal) {
  const { message, max_tokens: limit, temperature } = form.elements;
  const request = {
    messages: [{ role: "user", content: message.value }], maxTokens: Number(limit.value),
    temperature: Number(temperature.value), method,
  };
  return ask(request, byId(side), byId(`${side}-figures`), signal);
}

function verdict(methods, runs, temperature) {
  const ratios = runs.map(([left, right]) => speed(right) / speed(left)).filter(Number.isFinite).sort((a, b) => a - b);
  const parts = [];
  if (ratios.length) parts.push(ratioText(methods, ratios));
  if (runs.length > 1 && methods.includes("suffix")) parts.push("suffix remembers its own answers, so later runs are faster.");
  if (runs.every(([left, right]) => left.text === right.text)) parts.push("Both wrote the same text.");
  else {
    const why = temperature ? "as sampling does" : "although the temperature is 0: two tokens may have been equally likely";
    parts.push(`The texts differ, ${why}.`);
  }
  return parts.join(" ");
}

function ratioText([left, right], ratios) {
  const middle = ratios.length >> 1;
  const median = ratios.length % 2 ? ratios[middle] : (ratios[middle - 1] + ratios[middle]) / 2;
  const spread = ratios.length > 1
    ? ` (${ratios[0].toFixed(2)} to ${ratios.at(-1).toFixed(2)} in ${ratios.length} runs)` : " in one run, which says little";
  return `${right} is ${median.toFixed(2)} times as fast as ${left}${spread}.`;
}
