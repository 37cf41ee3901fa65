// The proposers: their table, switches, loads and unloads.

import { call } from "./api.js";
import { swatch } from "./charts.js";
import { byId, filled, methodText, number, onSubmit, percent, readJson, row, say, setOptions } from "./page.js";

const METHODS = [
  "ngram", "suffix", "draft_model", "medusa", "mlp_speculator", "eagle", "eagle3", "mtp", "dflash", "dspark", "cascade",
  "grammar",
];
const LOAD_TIMEOUT_MS = 600000;

/** Connects the forms; `refresh` reads the server's state again. */
export function connect(refresh) {
  const form = byId("switch");
  const limit = form.elements.timeout_s;
  const showLimit = () => (limit.closest("label").hidden = form.elements.mode.value !== "drain");
  form.elements.mode.addEventListener("change", showLimit);
  showLimit();
  onSubmit(form, async () => {
    const body = filled(form, ["speculative_model", "num_speculative_tokens", "mode", "reason"]);
    if (body.mode === "drain") body.timeout_s = Number(limit.value);
    const timeoutMs = ((body.timeout_s ?? 0) + 20) * 1000;
    const answer = await call("POST", "v1/switch_spec_method", body, { timeoutMs }).finally(refresh);
    return `${methodText(answer.previous)} → ${methodText(answer.active)}: ${answer.mode}, ` +
      `${answer.in_flight} in flight, ${number(answer.waited_ms)} ms.`;
  });
  byId("methods").replaceChildren(...METHODS.map((name) => new Option(name, name)));
  onSubmit(byId("load"), async (load) => {
    const fields = filled(load, ["name", "method", "num_speculative_tokens", "model", "options"]);
    const { options, ...body } = fields;
    Object.assign(body, readJson(options ?? "{}", "The other options"));
    const made = await call("POST", "v1/load_proposer", body, { timeoutMs: LOAD_TIMEOUT_MS }).finally(refresh);
    load.reset();
    return `${made.name} is loaded and can be chosen.`;
  });
  byId("proposers").addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-unload]");
    if (!button) return;
    const result = byId("unload-result");
    button.disabled = true;
    try {
      await call("POST", "v1/unload_proposer", { name: button.dataset.unload });
      say(result, `${button.dataset.unload} is unloaded.`);
    } catch (error) {
      say(result, error.message, true);
    } finally {
      button.disabled = false;
    }
    refresh();
  });
}

/** Shows the table. Without an admin key, `infos` is null and the names come from the metrics. */
export function show(infos, rates, isAdmin) {
  const known = infos ?? Object.keys(rates).filter((name) => name !== "none").map((name) => ({ name }));
  const rows = known.map((info) => proposerRow(info, rates[info.name] ?? {}, isAdmin));
  const body = byId("proposers").tBodies[0];
  const shape = JSON.stringify([isAdmin, known.map((info) => info.name)]);
  if (body.dataset.shape !== shape) {
    body.dataset.shape = shape;
    body.replaceChildren(...rows);
    return;
  }
  // The last cell has the button. It stays: a click on a button that is replaced meanwhile is lost.
  rows.forEach((fresh, i) =>
    [...fresh.cells].slice(0, -1).forEach((cell, j) => body.rows[i].cells[j].replaceWith(cell)));
}

function proposerRow(info, rate, isAdmin) {
  const name = document.createElement("th");
  name.scope = "row";
  name.append(swatch(info.name), info.name);
  const state = info.last_error ? `${info.state}: ${info.last_error}` : info.state ?? "–";
  return row(name, info.method ?? "–", String(info.num_speculative_tokens ?? "–"), state, percent(rate.acceptance),
    number(rate.step, 2), number(rate.perSecond), number(info.draft_latency_ms, 2), memory(info), unloadButton(info.name, isAdmin));
}

function memory(info) {
  const bytes = (info.weights_bytes ?? 0) + (info.kv_bytes ?? 0);
  return bytes ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : "–";
}

function unloadButton(name, isAdmin) {
  if (!isAdmin) return "–";
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.unload = name;
  button.textContent = "Unload";
  button.setAttribute("aria-label", `Unload ${name}`);
  return button;
}

/** Fills the choice of methods for a switch. */
export function setMethods(names, active) {
  setOptions(byId("switch").elements.speculative_model, names, active);
}
