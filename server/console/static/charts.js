// The four charts, drawn by Plotly, and the legend that they share.

import { KEPT_S } from "./metrics.js";

const NUM_COLOURS = 9; // --series-0 and on, in console.css: for light and for dark
const SHORTEST_MS = 60000;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const order = [];

/** The style sheet's name of a proposer's colour, the same everywhere in the page. */
export function colourOf(name) {
  if (name === "none") return "--dim";
  if (!order.includes(name)) order.push(name);
  return `--series-${order.indexOf(name) % NUM_COLOURS}`;
}

/** Gives the proposers their colours, in this order. */
export function register(names) {
  names.forEach(colourOf);
}

function dashOf(name) {
  return name === "none" ? "solid" : DASHES[order.indexOf(name) % DASHES.length];
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Draws all charts from the points of a `History` and the switches of the audit. */
export function draw(points, switches) {
  const names = [...new Set(points.flatMap((point) => Object.keys(point.proposers ?? {})))];
  const shown = names.filter((name) => points.some((point) => point.proposers?.[name]?.perSecond > 0));
  const x = points.map((point) => new Date(point.timeMs));
  const by = (field, scale = 1) => (name) =>
    points.map((point) => scaled(point.proposers?.[name]?.[field], scale));
  const drafting = shown.filter((name) => name !== "none");
  const marks = switches.map((record) => ({ timeMs: record.when * 1000, text: record.to.spec_method }));
  plot("chart-acceptance", drafting.map(line(x, by("acceptance", 100))), marks, { range: [0, 100] });
  plot("chart-step", drafting.map(line(x, by("step"))), marks, { rangemode: "tozero" });
  plot("chart-throughput", shown.map((name) => ({ ...line(x, by("perSecond"))(name), stackgroup: "all", line: { width: 1, color: style(colourOf(name)) } })), marks, { rangemode: "tozero" });
  plot("chart-queue", queue(x, points), marks, { rangemode: "tozero" });
  drawLegend(shown);
}

function scaled(value, scale) {
  return value === null || value === undefined ? null : value * scale;
}

function line(x, y) {
  return (name) => ({ x, y: y(name), name, mode: "lines", line: { color: style(colourOf(name)), dash: dashOf(name), width: 2.5 } });
}

function queue(x, points) {
  const kinds = [["in flight", "inFlight", "--grid", "solid", 8], ["running", "running", "--accent", "solid", 2.5], ["waiting", "waiting", "--bad", "dash", 2.5]];
  return kinds.map(([name, field, colour, dash, width]) => ({ x, y: points.map((point) => point[field] ?? null), name,
    mode: "lines", line: { color: style(colour), dash, width, shape: "hv" } }));
}

function plot(id, traces, marks, yaxis) {
  const now = Date.now();
  // A page that was just opened shows its first minute in full width.
  const first = traces[0]?.x[0]?.getTime() ?? now;
  const from = Math.max(now - KEPT_S * 1000, Math.min(first, now - SHORTEST_MS));
  const axis = { gridcolor: style("--grid"), linecolor: style("--line"), zeroline: false, fixedrange: true };
  const inside = marks.filter((mark) => mark.timeMs > from);
  const layout = {
    margin: { l: 40, r: 8, t: 18, b: 28 }, dragmode: false, hovermode: "x unified", showlegend: id === "chart-queue",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: style("--text"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: style("--card"), font: { color: style("--text") } },
    xaxis: { ...axis, type: "date", range: [new Date(from), new Date(now)], nticks: 4, tickformat: "%H:%M:%S", tickangle: 0 },
    yaxis: { ...axis, ...yaxis, nticks: 5, hoverformat: ".3~g" },
    shapes: inside.map((mark) => ({ type: "line", x0: new Date(mark.timeMs), x1: new Date(mark.timeMs), y0: 0, y1: 1, yref: "paper", line: { dash: "dot", width: 1.5, color: style("--dim") } })),
    annotations: id === "chart-queue" ? [] : inside.map((mark) => ({ x: new Date(mark.timeMs), y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: mark.text, font: { size: 11 } })),
  };
  Plotly.react(id, traces, layout, { displayModeBar: false, responsive: true });
  const last = traces.map((trace) => [trace.name, trace.y.at(-1)]).filter(([, value]) => value !== null && value !== undefined);
  const title = document.getElementById(id).closest("figure").querySelector("figcaption").textContent;
  const words = last.map(([name, value]) => `${name} ${value.toFixed(1)}`).join(", ");
  document.getElementById(id).setAttribute("aria-label", `${title}. Now: ${words || "no drafts"}.`);
}

function drawLegend(names) {
  const items = names.map((name) => {
    const item = document.createElement("li");
    item.append(swatch(name), name === "none" ? "none (plain decoding)" : name);
    return item;
  });
  document.getElementById("legend").replaceChildren(...items);
}

/** A short line in the proposer's colour and dash, as in the charts. */
export function swatch(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "line");
  svg.setAttribute("aria-hidden", "true");
  const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const dashes = { solid: "", dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "13 5" };
  const look = { x1: "0", x2: "100%", y1: "50%", y2: "50%", "stroke-width": "3", "stroke-dasharray": dashes[dashOf(name)] };
  for (const [attribute, value] of Object.entries(look)) stroke.setAttribute(attribute, value);
  stroke.style.stroke = `var(${colourOf(name)})`;
  svg.append(stroke);
  return svg;
}
