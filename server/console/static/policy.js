// The policies: what they chose and why, their parameters, the routing rules, and `explain`.

import { call } from "./api.js";
import { byId, filled, methodText, onSubmit, readJson, row, setOptions } from "./page.js";

let latest = null;

/** Connects the forms; `refresh` reads the server's state again. */
export function connect(refresh) {
  const form = byId("policy");
  const rules = byId("rules");
  for (const field of [form.elements.parameters, rules.elements.rules]) {
    field.addEventListener("input", () => (field.dataset.edited = "yes"));
  }
  for (const one of [form, rules]) {
    one.addEventListener("reset", (event) => {
      event.preventDefault();
      forgetEdit(one);
      if (latest) show(latest);
    });
  }
  form.elements.name.addEventListener("change", () => {
    forgetEdit(form);
    if (latest) show(latest);
  });
  onSubmit(form, async () => {
    const name = form.elements.name.value;
    const parameters = readJson(form.elements.parameters.value, "The parameters");
    await change(form, { policies: { [name]: parameters } }, refresh);
    return `The parameters of ${name} are in force.`;
  });
  onSubmit(rules, async () => {
    await change(rules, { rules: readJson(rules.elements.rules.value, "The rules") }, refresh);
    return latest.warnings.length ? `The rules are in force. ${latest.warnings.join(" ")}` : "The rules are in force.";
  });
  onSubmit(byId("explain"), async (explain) => {
    const chat = { messages: [{ role: "user", content: explain.elements.message.value }] };
    const answer = await call("POST", "v1/explain", { chat });
    showExplanation(explain.querySelector(".result"), answer);
  });
}

async function change(form, body, refresh) {
  const answer = await call("PUT", "v1/spec_policy", { ...body, ...filled(form, ["reason"]) });
  forgetEdit(form);
  show(answer);
  refresh();
}

function forgetEdit(form) {
  for (const field of form.querySelectorAll("textarea")) delete field.dataset.edited;
}

/** Shows the answer of `GET /v1/spec_policy`. A text that the person edits stays as it is. */
export function show(answer) {
  latest = answer;
  const form = byId("policy");
  setOptions(form.elements.name, answer.policies.map((policy) => policy.name), answer.active);
  const policy = answer.policies.find((one) => one.name === form.elements.name.value);
  if (!policy) return;
  byId("policy-state").textContent = stateText(policy, answer.active);
  byId("decisions").replaceChildren(...bars(policy.decisions));
  setText(byId("evidence"), JSON.stringify({ state: policy.state, evidence: answer.evidence }, null, 1));
  fill(form.elements.parameters, policy.parameters);
  fill(byId("rules").elements.rules, answer.rules.map(({ name, match, use }) => ({ name, match, use })));
}

function stateText(policy, active) {
  const role = policy.name === active ? "It is the active method." : "It is not the active method.";
  return policy.suspended ? `${role} Its guard holds it at plain decoding, because speculation lost time.` : role;
}

function fill(field, value) {
  if (!field.dataset.edited) setText(field, JSON.stringify(value, null, 2), "value");
}

// A text that did not change is not set again: that would lose the selection and the scroll.
function setText(element, text, property = "textContent") {
  if (element[property] !== text) element[property] = text;
}

function bars(decisions) {
  const total = Object.values(decisions).reduce((sum, rows) => sum + rows, 0);
  if (!total) return [Object.assign(document.createElement("li"), { textContent: "Nothing." })];
  return Object.entries(decisions).sort(([, a], [, b]) => b - a).map(([name, rows]) => {
    const meter = Object.assign(document.createElement("meter"), { value: rows / total });
    meter.setAttribute("aria-label", `Share of ${name}`);
    const item = document.createElement("li");
    const share = document.createElement("span");
    share.textContent = `${((100 * rows) / total).toFixed(0)} %`;
    const label = document.createElement("span");
    label.textContent = name;
    item.append(label, meter, share);
    return item;
  });
}

function showExplanation(element, answer) {
  const sentence = document.createElement("p");
  sentence.textContent = `${methodText(answer)}: ${answer.why}.`;
  element.classList.remove("bad");
  element.replaceChildren(sentence);
  if (answer.rules.length) {
    const table = document.createElement("table");
    table.append(...answer.rules.map((rule) => row(rule.rule, rule.matches ? "matches" : "does not match", rule.why)));
    element.append(table);
  }
  if (answer.policy) element.append(...bars(answer.policy.decisions));
}
