// The table of all replicas. Only `specgate console --all` has it, whose address ends with #fleet.

import { call } from "./api.js";
import { byId, fillTable, methodText, row } from "./page.js";

const isFleet = location.hash === "#fleet";
let busy = false;

/** Reads and shows the replicas; does nothing at a console of one server, or while it reads. */
export async function read() {
  if (!isFleet || busy) return;
  byId("fleet").hidden = false;
  busy = true;
  try {
    show(await call("GET", "fleet"));
  } catch (error) {
    byId("fleet-summary").textContent = error.message;
  } finally {
    busy = false;
  }
}

function show(replicas) {
  const differing = replicas.filter((one) => one.differs).length;
  byId("fleet-summary").textContent = differing
    ? `${differing} of ${replicas.length} replicas differ from the others or do not answer.`
    : `All ${replicas.length} replicas have the same method and generation.`;
  fillTable(byId("fleet-table"), replicas.map(line));
}

function line(one) {
  if (one.error !== null) return marked(row(one.replica, "?", "–", "–", one.error), true);
  const inFlight = Object.values(one.in_flight).reduce((sum, count) => sum + count, 0);
  const states = [];
  if (one.differs) states.push("differs");
  if (one.fleet.switching) states.push("switching");
  const cells = [one.replica, methodText(one), String(one.fleet.generation), String(inFlight)];
  return marked(row(...cells, states.join(", ") || "as the others"), one.differs);
}

function marked(element, differs) {
  element.classList.toggle("differs", differs);
  return element;
}
