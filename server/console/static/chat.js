// A conversation: each answer under the method that was chosen beside the message.

import { ask } from "./answer.js";
import { byId, say, setOptions } from "./page.js";

const ACTIVE = "the active method";

let messages = [];
let running = null;

/** Connects the form. */
export function connect() {
  const form = byId("chat");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) send(form);
  });
  // Enter sends; with Shift it is a new line.
  form.elements.message.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  byId("chat-stop").addEventListener("click", () => running?.abort());
  byId("chat-new").addEventListener("click", () => {
    running?.abort();
    messages = [];
    byId("messages").replaceChildren();
    say(byId("chat-result"), "");
    form.elements.message.focus();
  });
  byId("show-rejected").addEventListener("change", (event) =>
    byId("chat-view").classList.toggle("with-rejected", event.target.checked));
}

/** Fills the choice of methods. */
export function setMethods(names) {
  setOptions(byId("chat").elements.method, [ACTIVE, ...names], ACTIVE);
}

async function send(form) {
  const { message, method, num_speculative_tokens: k, max_tokens: limit, temperature } = form.elements;
  const content = message.value;
  const before = messages;
  const question = turn("user", "You");
  question.text.textContent = content;
  const chosen = method.value === ACTIVE ? "" : method.value;
  const answer = turn("assistant", chosen || ACTIVE);
  running = new AbortController();
  setRunning(form, true);
  say(byId("chat-result"), "");
  message.value = "";
  const conversation = [...before, { role: "user", content }];
  try {
    const state = await ask(
      { messages: conversation, maxTokens: Number(limit.value), temperature: Number(temperature.value), method: chosen, k: Number(k.value) },
      answer.text, answer.figures, running.signal);
    messages = [...conversation, { role: "assistant", content: state.text }];
  } catch (error) {
    const stopped = error.name === "AbortError";
    const written = answer.text.textContent;
    say(byId("chat-result"), stopped ? "Stopped." : error.message, !stopped);
    if (stopped && written && messages === before) messages = [...conversation, { role: "assistant", content: plainText(answer.text) }];
    else if (messages === before) {
      // Nothing was answered: the message can be sent again.
      question.item.remove();
      answer.item.remove();
      message.value = content;
    }
  } finally {
    running = null;
    setRunning(form, false);
  }
}

/** The answer without the marks of rejected drafts. */
function plainText(element) {
  return [...element.querySelectorAll(".token")].map((token) => token.textContent).join("");
}

function turn(role, name) {
  const item = Object.assign(document.createElement("li"), { className: role });
  const title = Object.assign(document.createElement("h3"), { textContent: name });
  const figures = Object.assign(document.createElement("p"), { className: "figures" });
  const text = Object.assign(document.createElement("pre"), { className: "answer" });
  item.append(title, text, ...(role === "assistant" ? [figures] : []));
  byId("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
  return { item, text, figures };
}

function setRunning(form, is) {
  form.querySelector("button[type=submit]").disabled = is;
  byId("chat-stop").disabled = !is;
}
