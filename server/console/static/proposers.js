// The proposers: their table, switches, loads and unloads.

import { call } from "./api.js";
import { swatch } from "./charts.js";
import { FEW } from "./metrics.js";
import { byId, fillTable, filled, methodText, number, onSubmit, percent, readJson, row, rowButton, say, setOptions } from "./page.js";

const METHODS = ["ngram", "suffix", "medusa", "mlp_speculator", "cascade", "chain", "grammar"];
const LOAD_TIMEOUT_MS = 600000;
const STORED = "specgate-console-unloaded";

/** What was unloaded from this page: name -> the object that loads it again. */
const unloaded = new Map(JSON.parse(sessionStorage.getItem(STORED) ?? "[]"));
let latest = null;

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
  byId("load").elements.method.replaceChildren(...METHODS.map((name) => new Option(name, name)));
  onSubmit(byId("load"), async (load) => {
    const fields = filled(load, ["name", "method", "num_speculative_tokens", "model", "options"]);
    const { options, ...body } = fields;
    Object.assign(body, readJson(options ?? "{}", "The other options"));
    const name = await loadProposer(body).finally(refresh);
    load.reset();
    return `${name} is loaded and can be chosen.`;
  });
  byId("proposers").addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const { unload, load } = button.dataset;
    if (unload && !(await confirmed(unload))) return;
    const result = byId("unload-result");
    button.disabled = true;
    try {
      if (unload) await unloadProposer(unload);
      else await loadProposer(unloaded.get(load));
      say(result, unload ? `${unload} is unloaded.` : `${load} is loaded and can be chosen.`);
    } catch (error) {
      say(result, error.message, true);
    } finally {
      button.disabled = false;
    }
    refresh();
  });
}

async function loadProposer(body) {
  const made = await call("POST", "v1/load_proposer", body, { timeoutMs: LOAD_TIMEOUT_MS });
  remember(made.name, null);
  return made.name;
}

async function unloadProposer(name) {
  const { settings } = latest.infos.find((info) => info.name === name);
  await call("POST", "v1/unload_proposer", { name });
  remember(name, settings);
}

function remember(name, settings) {
  if (settings) unloaded.set(name, settings);
  else unloaded.delete(name);
  sessionStorage.setItem(STORED, JSON.stringify([...unloaded]));
}

/** Asks before an unload, and says who uses the proposer. */
function confirmed(name) {
  const dialog = byId("unload-dialog");
  const count = latest.status?.in_flight[name] ?? 0;
  byId("unload-title").textContent = `Unload ${name}?`;
  byId("unload-text").textContent =
    (count ? `${count} requests in flight use it: the server refuses until they have ended. ` : "No request uses it now. ") +
    "It stays in the list, with a button that loads it again. Requests that name it are refused until then.";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "unload"), { once: true });
    dialog.returnValue = "";
  });
}

/** Shows the table. Without an admin key, `infos` is null and the names come from the metrics. */
export function show(infos, rates, status) {
  latest = { infos: infos ?? [], status };
  const loaded = infos ?? Object.keys(rates).filter((name) => name !== "none").map((name) => ({ name }));
  const names = loaded.map((info) => info.name);
  for (const name of names) if (unloaded.has(name)) remember(name, null);
  const gone = status ? [...unloaded].map(([name, settings]) => ({ ...settings, name, state: "unloaded" })) : [];
  const rows = [...loaded, ...gone].map((info) => proposerRow(info, rates[info.name] ?? {}, status));
  const table = byId("proposers");
  const actions = rows.map((line) => line.cells[line.cells.length - 1].innerHTML);
  const shape = JSON.stringify([names, gone.map((info) => info.name), actions]);
  if (table.dataset.shape !== shape) {
    table.dataset.shape = shape;
    fillTable(table, rows);
    return;
  }
  // The last cell has the button. It stays: a click on a button that is replaced meanwhile is lost.
  rows.forEach((fresh, i) =>
    [...fresh.cells].slice(0, -1).forEach((cell, j) => {
      const old = table.tBodies[0].rows[i].cells[j];
      cell.dataset.title = old.dataset.title;
      old.replaceWith(cell);
    }));
}

function proposerRow(info, rate, status) {
  const name = document.createElement("th");
  name.scope = "row";
  name.append(swatch(info.name), info.name);
  const state = info.last_error ? `${info.state}: ${info.last_error}` : info.state ?? "–";
  return row(name, info.method ?? "–", String(info.num_speculative_tokens ?? "–"), state,
    status ? String(status.in_flight[info.name] ?? 0) : "–", acceptance(rate),
    rate.drafted >= FEW ? number(rate.step, 2) : "–", number(rate.perSecond), number(info.draft_latency_ms, 2), memory(info), action(info, status));
}

function acceptance(rate) {
  if (!rate.drafted) return "–";
  return rate.drafted < FEW ? `of only ${rate.drafted} tokens` : percent(rate.acceptance);
}

function memory(info) {
  const bytes = (info.weights_bytes ?? 0) + (info.kv_bytes ?? 0);
  return bytes ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : "–";
}

function action(info, status) {
  if (!status || info.state === "loading") return "–";
  if (info.state === "unloaded") return rowButton("Load", info.name, "load");
  const button = rowButton("Unload", info.name, "unload");
  const reason = info.can_unload ? (status.spec_method === info.name ? "the active method" : "") : "keeps its own KV";
  if (!reason) return button;
  button.disabled = true;
  button.title = info.can_unload
    ? "It is the active method: switch to another one first."
    : "Its KV is reserved when the engine starts: remove it from --proposer and restart the server.";
  const why = Object.assign(document.createElement("span"), { className: "why", textContent: reason });
  const both = document.createElement("td");
  both.append(button, why);
  return both;
}

/** Fills the choice of methods for a switch. */
export function setMethods(names, active) {
  setOptions(byId("switch").elements.speculative_model, names, active);
}
