// The routing rules as a table, a form that sets one, and `explain`.

import { call } from "./api.js";
import { byId, fillTable, filled, methodText, number, onSubmit, readJson, row, rowButton, say, setOptions } from "./page.js";
import { bars } from "./policy.js";

let rules = [];

/** Connects the table and the forms; `refresh` reads the server's state again. */
export function connect(refresh) {
  byId("rules-table").addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { edit, up, remove } = button.dataset;
    if (edit) return editRule(rules.find((rule) => rule.name === edit));
    const i = rules.findIndex((rule) => rule.name === (up ?? remove));
    const changed = [...rules];
    if (up) changed.splice(i - 1, 2, rules[i], rules[i - 1]);
    else changed.splice(i, 1);
    try {
      say(byId("rules-result"), await put(changed, {}));
    } catch (error) {
      say(byId("rules-result"), error.message, true);
    }
    refresh();
  });
  onSubmit(byId("rule"), async (form) => {
    const { name, match, proposer, num_speculative_tokens: k, reason } =
      filled(form, ["name", "match", "proposer", "num_speculative_tokens", "reason"]);
    const rule = { name, match: readJson(match, "The conditions"), use: { proposer, ...(k ? { num_speculative_tokens: k } : {}) } };
    const changed = rules.some((one) => one.name === name)
      ? rules.map((one) => (one.name === name ? rule : one)) : [...rules, rule];
    const outcome = await put(changed, reason ? { reason } : {}).finally(refresh);
    form.reset();
    return outcome;
  });
  onSubmit(byId("explain"), async (explain) => {
    const chat = { messages: [{ role: "user", content: explain.elements.message.value }] };
    showExplanation(explain.querySelector(".result"), await call("POST", "v1/explain", { chat }));
  });
}

async function put(changed, more) {
  const answer = await call("PUT", "v1/spec_policy", { rules: changed, ...more });
  show(answer);
  return answer.warnings.length ? `The rules are in force. ${answer.warnings.join(" ")}` : "The rules are in force.";
}

/** Shows the rules of `GET /v1/spec_policy`. */
export function show(answer) {
  rules = answer.rules.map(({ name, match, use }) => ({ name, match, use }));
  const table = byId("rules-table");
  const shape = JSON.stringify(answer.rules);
  if (table.dataset.shape === shape) return;
  table.dataset.shape = shape;
  const rows = answer.rules.map((rule, i) => ruleRow(rule, i));
  if (!rows.length) rows.push(row(Object.assign(document.createElement("td"), { colSpan: 5, textContent: "No rule." })));
  fillTable(table, rows);
}

function ruleRow(rule, i) {
  const name = Object.assign(document.createElement("th"), { scope: "row", textContent: rule.name });
  const actions = document.createElement("td");
  actions.className = "actions";
  actions.append(rowButton("Edit", rule.name, "edit"));
  if (i) actions.append(rowButton("Up", rule.name, "up"));
  actions.append(rowButton("Remove", rule.name, "remove"));
  const overlap = rule.overlap === null ? "–" : `${number(rule.overlap, 2)} in ${rule.answers} answers`;
  return row(name, long(conditions(rule.match)), long(methodText({ spec_method: rule.use.proposer ?? "the request's", ...rule.use })), overlap, actions);
}

/** The conditions in words: `prompt_tokens: min 1000; header: x-app chat`. */
function conditions(match) {
  const words = (value) => (value !== null && typeof value === "object"
    ? Object.entries(value).map(([key, part]) => `${key} ${words(part)}`).join(", ") : String(value));
  return Object.entries(match).map(([name, value]) => `${name}: ${words(value)}`).join("; ") || "every request";
}

function long(text) {
  return Object.assign(document.createElement("td"), { className: "long", textContent: text });
}

function editRule(rule) {
  const { name, match, proposer, num_speculative_tokens: k } = byId("rule").elements;
  name.value = rule.name;
  match.value = JSON.stringify(rule.match);
  proposer.value = rule.use.proposer ?? "";
  k.value = rule.use.num_speculative_tokens ?? "";
  byId("rule-details").open = true;
  match.focus();
}

/** Fills the choice of methods of a rule. */
export function setMethods(names) {
  setOptions(byId("rule").elements.proposer, names, names[0]);
}

function showExplanation(element, answer) {
  const sentence = document.createElement("p");
  sentence.textContent = `${methodText(answer)}: ${answer.why}.`;
  element.classList.remove("bad");
  element.replaceChildren(sentence);
  if (answer.rules.length) {
    const table = document.createElement("table");
    table.append(...answer.rules.map((rule) => row(rule.rule, rule.matches ? "matches" : "does not match", long(rule.why))));
    element.append(table);
  }
  if (answer.policy) element.append(...bars(answer.policy.decisions));
}
