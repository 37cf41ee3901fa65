// The four charts, drawn by Plotly, and the legend that they share and that switches their lines.

import { FEW, KEPT_S } from "./metrics.js";

const NUM_COLOURS = 9; // --series-0 and on, in console.css: for light and for dark
const SHORTEST_MS = 60000;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const order = [];

/** What the person switched on or off: name -> whether its line is shown. */
const chosen = new Map();
let latest = null;

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

/** Draws all charts from the points of a `History`, the switches of the audit, and the active method. */
export function draw(points, switches, active) {
  latest = [points, switches, active];
  if (document.getElementById("overview-view").hidden) return;
  const names = [...new Set(points.flatMap((point) => Object.keys(point.proposers ?? {})))];
  const drafted = names.filter((name) => points.some((point) => point.proposers?.[name]?.perSecond > 0));
  const shown = drafted.filter((name) => chosen.get(name) ?? isActive(points, name, active));
  const x = points.map((point) => new Date(point.timeMs));
  const drafting = shown.filter((name) => name !== "none");
  const marks = switches.map((record) => ({ timeMs: record.when * 1000, text: record.to.spec_method }));
  plot("chart-acceptance", drafting.flatMap((name) => lines(x, points, name, "acceptance", 100)), marks, { range: [0, 100] });
  plot("chart-step", drafting.flatMap((name) => lines(x, points, name, "step", 1)), marks, { rangemode: "tozero" });
  plot("chart-throughput", shown.map((name) => stacked(x, points, name)), marks, { rangemode: "tozero" });
  plot("chart-queue", queue(x, points), marks, { rangemode: "tozero" });
  drawLegend(drafted, shown);
}

// A probe now and then is no activity: one point with enough drafts is.
function isActive(points, name, active) {
  if (name === "none" || name === active) return true;
  return points.some((point) => point.proposers?.[name]?.drafted >= FEW);
}

function scaled(value, scale) {
  return value === null || value === undefined ? null : value * scale;
}

/** A proposer's line, and beside it its faint points of few drafts. */
function lines(x, points, name, field, scale) {
  const color = style(colourOf(name));
  const values = points.map((point) => scaled(point.proposers?.[name]?.[field], scale));
  const counts = points.map((point) => point.proposers?.[name]?.drafted ?? 0);
  const line = { x, y: values.map((value, i) => (counts[i] >= FEW ? value : null)), name, mode: "lines",
    line: { color, dash: dashOf(name), width: 2.5 } };
  const faint = { x, y: values.map((value, i) => (counts[i] < FEW ? value : null)), name, mode: "markers", opacity: 0.3,
    marker: { color, size: 5 }, customdata: counts, hovertemplate: "%{y:.3~g}, of only %{customdata} drafted tokens" };
  return [line, faint];
}

function stacked(x, points, name) {
  const y = points.map((point) => scaled(point.proposers?.[name]?.perSecond, 1));
  return { x, y, name, mode: "lines", stackgroup: "all", line: { width: 1, color: style(colourOf(name)), dash: dashOf(name) } };
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
  const last = traces.filter((trace) => trace.mode === "lines").map((trace) => [trace.name, trace.y.at(-1)]).filter(([, value]) => value !== null && value !== undefined);
  const title = document.getElementById(id).closest("figure").querySelector("figcaption").textContent;
  const words = last.map(([name, value]) => `${name} ${value.toFixed(1)}`).join(", ");
  document.getElementById(id).setAttribute("aria-label", `${title}. Now: ${words || "no drafts"}.`);
}

function drawLegend(names, shown) {
  const legend = document.getElementById("legend");
  const shape = JSON.stringify([names, shown]);
  if (legend.dataset.shape === shape) return;
  legend.dataset.shape = shape;
  const focused = document.activeElement?.dataset?.line;
  legend.replaceChildren(...names.map((name) => {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.dataset.line = name;
    button.setAttribute("aria-pressed", String(shown.includes(name)));
    button.append(swatch(name), name === "none" ? "none (plain decoding)" : name);
    button.addEventListener("click", () => {
      chosen.set(name, !shown.includes(name));
      draw(...latest);
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  if (focused) legend.querySelector(`[data-line="${CSS.escape(focused)}"]`)?.focus();
}

/** Draws the charts that were hidden. */
export function redraw() {
  if (latest) draw(...latest);
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
