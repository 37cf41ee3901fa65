// Reads the server's state every two seconds while the page is visible, and shows it.

import { CallError, call, currentKey, useKey } from "./api.js";
import * as audit from "./audit.js";
import * as charts from "./charts.js";
import * as compare from "./compare.js";
import * as fleet from "./fleet.js";
import { History, PATH, parse } from "./metrics.js";
import { byId, methodText, number, percent } from "./page.js";
import * as policy from "./policy.js";
import * as proposers from "./proposers.js";

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
  const names = (known.infos?.data ?? []).map((info) => info.name);
  const switches = (status?.switches ?? []).filter((record) => record.outcome === "switched");
  charts.register(names.length ? names : Object.keys(last.proposers));
  charts.draw(history.points, switches);
  byId("tile-active").textContent = status ? methodText(status) : "–";
  byId("tile-throughput").textContent = number(last.total);
  byId("tile-acceptance").textContent = percent(last.acceptance);
  byId("tile-step").textContent = number(last.step, 2);
  byId("tile-running").textContent = String(last.running);
  byId("tile-waiting").textContent = String(last.waiting + (status?.drain?.held ?? 0));
  proposers.show(known.infos?.data ?? null, last.proposers, status !== null);
  const policies = (known.policies?.policies ?? []).map((one) => one.name);
  const methods = [...(names.length ? names : Object.keys(last.proposers)).filter((name) => name !== "none"), "none", ...policies];
  if (status) proposers.setMethods(methods, status.spec_method);
  compare.setMethods(methods);
  if (known.policies) policy.show(known.policies);
  if (status) audit.show(status.switches, known.infos?.changes ?? [], known.policies?.changes ?? []);
  allowActions(status !== null);
  connected(status);
}

function allowActions(are) {
  for (const form of ["switch", "load", "policy", "rules", "explain"]) byId(form).inert = !are;
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
compare.connect();
read();
