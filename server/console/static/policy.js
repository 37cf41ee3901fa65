// The policies: what they chose and why, and their parameters as a form.

import { call } from "./api.js";
import { byId, filled, onSubmit, setOptions } from "./page.js";

let latest = null;
let proposerNames = [];

/** Connects the form; `refresh` reads the server's state again. */
export function connect(refresh) {
  const form = byId("policy");
  const fields = byId("parameters");
  fields.addEventListener("input", () => (fields.dataset.edited = "yes"));
  const discard = () => {
    delete fields.dataset.edited;
    delete fields.dataset.shape;
    if (latest) show(latest, proposerNames);
  };
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    discard();
  });
  form.elements.name.addEventListener("change", discard);
  onSubmit(form, async () => {
    const name = form.elements.name.value;
    const body = { policies: { [name]: read(fields) }, ...filled(form, ["reason"]) };
    latest = await call("PUT", "v1/spec_policy", body);
    discard();
    refresh();
    return `The parameters of ${name} are in force.`;
  });
}

/** Shows the answer of `GET /v1/spec_policy`. Parameters that the person edits stay as they are. */
export function show(answer, names) {
  [latest, proposerNames] = [answer, names];
  const form = byId("policy");
  setOptions(form.elements.name, answer.policies.map((policy) => policy.name), answer.active);
  const policy = answer.policies.find((one) => one.name === form.elements.name.value);
  if (!policy) return;
  byId("policy-state").textContent = stateText(policy, answer.active);
  byId("decisions").replaceChildren(...bars(policy.decisions));
  const evidence = JSON.stringify({ state: policy.state, evidence: answer.evidence }, null, 1);
  // A text that did not change is not set again: that would lose the selection and the scroll.
  if (byId("evidence").textContent !== evidence) byId("evidence").textContent = evidence;
  showParameters(policy);
}

function stateText(policy, active) {
  const role = policy.name === active ? "It is the active method." : "It is not the active method.";
  return policy.suspended ? `${role} Its guard holds it at plain decoding, because speculation lost time.` : role;
}

function showParameters(policy) {
  const fields = byId("parameters");
  const shape = JSON.stringify([policy.name, policy.parameters, proposerNames]);
  if (fields.dataset.edited || fields.dataset.shape === shape) return;
  fields.dataset.shape = shape;
  fields.replaceChildren(...inputs(policy.parameters, ""));
}

/** The fields of an object of parameters; one within it is a group. */
function inputs(parameters, path) {
  return Object.entries(parameters).map(([name, value]) => {
    const fullName = path ? `${path}.${name}` : name;
    if (value !== null && typeof value === "object") {
      const group = document.createElement("fieldset");
      group.append(Object.assign(document.createElement("legend"), { textContent: name }), ...inputs(value, fullName));
      return group;
    }
    const label = document.createElement("label");
    label.append(`${name} `, input(name, fullName, value));
    return label;
  });
}

function input(name, fullName, value) {
  if (name === "proposer") {
    const select = document.createElement("select");
    select.dataset.parameter = fullName;
    setOptions(select, [...new Set([...proposerNames, "none", value])], value);
    return select;
  }
  const field = document.createElement("input");
  field.dataset.parameter = fullName;
  Object.assign(field, typeof value === "number" ? { type: "number", step: "any", inputMode: "decimal" } : {});
  field.value = String(value);
  return field;
}

/** The parameters as the form has them. Throws an error that names the field. */
function read(fields) {
  const parameters = {};
  for (const field of fields.querySelectorAll("[data-parameter]")) {
    const path = field.dataset.parameter.split(".");
    const name = path.pop();
    const place = path.reduce((object, key) => (object[key] ??= {}), parameters);
    if (field.type === "number" && field.value === "") throw new Error(`${field.dataset.parameter} must be a number.`);
    place[name] = field.type === "number" ? Number(field.value) : field.value;
  }
  return parameters;
}

/** What a policy chose, as bars; what it never chose is left out. */
export function bars(decisions) {
  const chosen = Object.entries(decisions).filter(([, rows]) => rows > 0).sort(([, a], [, b]) => b - a);
  const total = chosen.reduce((sum, [, rows]) => sum + rows, 0);
  if (!total) return [Object.assign(document.createElement("li"), { textContent: "Nothing." })];
  return chosen.map(([name, rows]) => {
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
