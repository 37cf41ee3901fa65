// The audit: the last switches, loads, unloads and changes of policies, newest first.

import { byId, fillTable, methodText, number, row } from "./page.js";

/** Shows the records of the three routes together. */
export function show(switches, proposerChanges, policyChanges) {
  const records = [...switches, ...proposerChanges, ...policyChanges].sort((a, b) => b.when - a.when);
  const rows = records.map((record) => {
    const when = document.createElement("time");
    const date = new Date(record.when * 1000);
    when.dateTime = date.toISOString();
    when.textContent = isoTime(date);
    const outcome = record.error ? `${record.outcome}: ${record.error}` : record.outcome;
    const who = record.peer ? `${record.who}, ${record.peer}` : record.who;
    return row(when, long(change(record)), long(outcome), long(record.reason ?? "–"), who, `${number(record.took_ms)} ms`);
  });
  if (!rows.length) {
    const cell = Object.assign(document.createElement("td"), { colSpan: 6, textContent: "No change since the start." });
    rows.push(row(cell));
  }
  fillTable(byId("audit"), rows);
}

/** Local time as in logs: 2026-11-23 20:25:01. */
function isoTime(date) {
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
}

function long(text) {
  return Object.assign(document.createElement("td"), { className: "long", textContent: text });
}

function change(record) {
  if (record.to) return `switch: ${methodText(record.from)} → ${methodText(record.to)}, ${record.mode}`;
  if (record.proposer) return `${record.what.replace("_proposer", "")} ${record.proposer}`;
  const parts = [];
  if (record.policies) parts.push(`parameters of ${Object.keys(record.policies).join(", ")}`);
  if (record.rules) parts.push(`${record.rules.length} routing rules`);
  return parts.join(" and ") || record.what;
}
