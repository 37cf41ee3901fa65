// Reads the server's state every two seconds while the page is visible, and shows it.

import { CallError, call, currentKey, useKey } from "./api.js";
import * as audit from "./audit.js";
import * as charts from "./charts.js";
import * as chat from "./chat.js";
import * as compare from "./compare.js";
import * as fleet from "./fleet.js";
import { FEW, History, PATH, parse } from "./metrics.js";
import { byId, methodText, number, percent } from "./page.js";
import * as policy from "./policy.js";
import * as proposers from "./proposers.js";
import * as rules from "./rules.js";
import * as tabs from "./tabs.js";

const INTERVAL_MS = 2000;
const SLOW_EVERY = 3; // Proposers and policies change seldom: every third time.

const history = new History();
const known = { version: null, infos: null, policies: null, turn: 0, admin: null };
let timer = 0;
let busy = false;
let again = false;

/** Reads everything now; a call during a reading repeats it. */
async function refresh() {
  known.turn = 0;
  if (busy) again = true;
  else await read();
}

async function read() {
  clearTimeout(timer);
  busy = true;
  try {
    do {
      again = false;
      try {
        await readOnce();
      } catch (error) {
        failed(error);
        if (!(error instanceof CallError)) console.error(error);
      }
    } while (again);
  } finally {
    busy = false;
    if (!document.hidden) timer = setTimeout(read, INTERVAL_MS);
  }
}

async function readOnce() {
  const scrape = parse(await call("GET", PATH));
  // Beside the rest: it takes as long as the slowest replica.
  void fleet.read();
  const status = await admin("v1/spec_method");
  if (status && (!known.infos || known.turn % SLOW_EVERY === 0)) {
    known.infos = await admin("v1/proposers");
    known.policies = await admin("v1/spec_policy");
  }
  known.turn += 1;
  const inFlight = status && Object.values(status.in_flight).reduce((sum, count) => sum + count, status.drain?.held ?? 0);
  history.add(scrape, Date.now(), { inFlight });
  show(status);
  // Without a key, or while the engine loads, the next reading tries again.
  known.version ??= await versionText().catch(() => null);
  byId("server").textContent = known.version ?? "";
}

async function versionText() {
  const [models, version] = [await call("GET", "v1/models"), await call("GET", "version")];
  return `${models.data[0].id} · Specgate ${version.version} · ${version.engine} ${version.engine_version}`;
}

/** The answer of an admin route; null if the key does not open it. */
async function admin(path) {
  try {
    const answer = await call("GET", path);
    known.admin = "yes";
    return answer;
  } catch (error) {
    if (![401, 403].includes(error.status)) throw error;
    known.admin = error.status === 401 ? "." : `: ${error.message}`;
    return null;
  }
}

function show(status) {
  const last = history.points.at(-1);
  const seen = Object.keys(last.proposers);
  const names = (known.infos?.data ?? []).map((info) => info.name);
  const switches = (status?.switches ?? []).filter((record) => record.outcome === "switched");
  charts.register(names.length ? names : seen);
  charts.draw(history.points, switches, status?.spec_method ?? history.minute.active);
  showTiles(last, history.minute, status);
  proposers.show(known.infos?.data ?? null, last.proposers, status);
  const drafting = (names.length ? names : seen).filter((name) => name !== "none");
  const policies = (known.policies?.policies ?? []).map((one) => one.name);
  const methods = [...drafting, "none", ...policies];
  if (status) proposers.setMethods(methods, status.spec_method);
  chat.setMethods(methods);
  compare.setMethods(methods);
  rules.setMethods(methods);
  if (known.policies) {
    policy.show(known.policies, drafting);
    rules.show(known.policies);
  }
  if (status) audit.show(status.switches, known.infos?.changes ?? [], known.policies?.changes ?? []);
  allowActions(status !== null);
  connected(status);
}

function showTiles(last, minute, status) {
  const policies = (known.policies?.policies ?? []).map((one) => one.name);
  const isPolicy = status && policies.includes(status.spec_method);
  const tiles = {
    gain: minute.gain === null || minute.gain === undefined ? "–" : `${minute.gain.toFixed(2)} ×`,
    // A policy chooses each number of drafts itself.
    active: isPolicy ? status.spec_method : status ? methodText(status) : minute.active ?? "–",
    throughput: number(last.total),
    acceptance: last.drafted >= FEW ? percent(last.acceptance) : "–",
    step: last.drafted >= FEW ? number(last.step, 2) : "–",
    ttft: milliseconds(minute.ttft), tpot: milliseconds(minute.tpot),
    errors: String(minute.errors ?? "–"),
    kv: percent(minute.kv),
    running: String(last.running), waiting: String(last.waiting + (status?.drain?.held ?? 0)),
  };
  for (const [name, text] of Object.entries(tiles)) byId(`tile-${name}`).textContent = text;
  byId("note-gain").textContent = minute.gainNote ?? "";
  byId("tile-errors").classList.toggle("bad", minute.errors > 0);
}

function milliseconds(quantiles) {
  return quantiles ? quantiles.map((seconds) => number(1000 * seconds, seconds < 0.1 ? 1 : 0)).join(" · ") : "–";
}

function allowActions(are) {
  for (const form of ["switch", "load", "policy", "rule", "explain"]) byId(form).inert = !are;
}

function connected(status) {
  const engine = status?.engine;
  const down = engine && engine.state !== "serving";
  setState(down ? `Engine ${engine.state}` : status ? "Connected" : "Connected, read only", !down);
  const drain = status?.drain;
  if (down) problem(`The engine is ${engine.state}: ${engine.reason}`);
  else if (!status) problem(`Only charts and messages${known.admin} Give an admin key to see and change more.`);
  else problem(drain ? `A drain to ${methodText(drain.to)} waits; ${drain.held} requests wait for it.` : "");
}

function failed(error) {
  history.gap(Date.now());
  allowActions(false);
  if (error.status === 401) {
    setState("Key needed", false);
    problem(currentKey() ? "The server does not accept the key of this tab." : "This server needs a key.");
    openDialog();
  } else if (error.status) {
    setState("Not ready", false);
    problem(error.message);
  } else {
    setState("No answer", false);
    problem(`${error.message} Trying again every ${INTERVAL_MS / 1000} seconds.`);
  }
}

function setState(text, up) {
  const pill = byId("state");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = up ? "pill up" : "pill down";
}

function problem(text) {
  const element = byId("problem");
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

// -- the key ---------------------------------------------------------------------------------

let declined = false;

function openDialog(asked = false) {
  const dialog = byId("key-dialog");
  if (dialog.open || (declined && !asked)) return;
  byId("key").value = currentKey();
  byId("key-problem").textContent = "";
  dialog.showModal();
}

function showKey() {
  byId("open-key").textContent = currentKey() ? "Key: set" : "Key: none";
}

/** Checks a key before it is used; returns why the server refuses it, or nothing. */
async function refusal(key) {
  const refused = async (path, withKey) => {
    try {
      await call("GET", path, undefined, { withKey });
      return "";
    } catch (error) {
      if (error.status === 401) return "The given key is not valid.";
      if (error.status === 403) return error.message;
      if (error.status === 503) return "";
      throw error;
    }
  };
  const notAdmin = await refused("v1/spec_method", key);
  if (!notAdmin || !key) return "";
  // Where inference needs no key, only an admin key can be meant.
  const open = !(await refused(PATH, ""));
  return open ? notAdmin : (await refused(PATH, key));
}

async function tryKey(event) {
  event.preventDefault();
  const key = byId("key").value.trim();
  try {
    const reason = await refusal(key);
    byId("key-problem").textContent = reason;
    if (reason) return;
  } catch (error) {
    byId("key-problem").textContent = error.message;
    return;
  }
  useKey(key);
  showKey();
  byId("key-dialog").close();
  declined = false;
  await refresh();
}

byId("key-form").addEventListener("submit", tryKey);
byId("open-key").addEventListener("click", () => openDialog(true));
byId("close-key").addEventListener("click", () => byId("key-dialog").close());
byId("key-dialog").addEventListener("close", () => (declined = true));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !busy) read();
});
proposers.connect(refresh);
policy.connect(refresh);
rules.connect(refresh);
chat.connect();
compare.connect();
tabs.connect((name) => {
  if (name === "overview") charts.redraw();
});
showKey();
read();
