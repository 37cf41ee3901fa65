// Counters of `/metrics`, kept for five minutes, and the rates that the charts show.

export const KEPT_S = 300;
const WINDOW_S = 10;

const BY_PROPOSER = {
  drafts: "specgate_spec_decode_drafts_total",
  drafted: "specgate_spec_decode_draft_tokens_total",
  accepted: "specgate_spec_decode_accepted_tokens_total",
  emitted: "specgate_spec_decode_emitted_tokens_total",
};
const GAUGES = { running: "vllm:num_requests_running", waiting: "vllm:num_requests_waiting" };

/** The path that returns only what is read here, which costs the server little. */
export const PATH = "metrics?" + [...Object.values(BY_PROPOSER), ...Object.values(GAUGES)]
  .map((name) => `name[]=${encodeURIComponent(name)}`).join("&");

const SAMPLE = /^([\w:]+)(?:\{(.*)\})? (\S+)/;
const PROPOSER = /(?:^|,)proposer="((?:[^"\\]|\\.)*)"/;

/** A scrape's text as {running, waiting, proposers: {name: {drafts, drafted, accepted, emitted}}}. */
export function parse(text) {
  const found = { running: 0, waiting: 0, proposers: {} };
  const sums = Object.entries(BY_PROPOSER);
  for (const line of text.split("\n")) {
    const match = SAMPLE.exec(line);
    if (!match) continue;
    const [, name, labels = "", value] = match;
    for (const [gauge, metric] of Object.entries(GAUGES)) if (name === metric) found[gauge] += Number(value);
    for (const [field, metric] of sums) {
      if (name !== metric) continue;
      const proposer = (PROPOSER.exec(labels)?.[1] ?? "").replace(/\\(.)/g, "$1");
      found.proposers[proposer] ??= { drafts: 0, drafted: 0, accepted: 0, emitted: 0 };
      found.proposers[proposer][field] += Number(value);
    }
  }
  return found;
}

/** The scrapes of the last minutes, and what each says about the seconds before it. */
export class History {
  #scrapes = [];
  points = [];

  /** Adds a scrape; `extra` has figures of other routes. */
  add(scrape, timeMs, extra = {}) {
    this.#scrapes.push({ timeMs, scrape });
    while (this.#scrapes.length > 2 && this.#scrapes[1].timeMs <= timeMs - WINDOW_S * 1000) this.#scrapes.shift();
    const since = this.#scrapes[0];
    this.points.push({ timeMs, running: scrape.running, waiting: scrape.waiting, ...extra,
      ...rates(since.scrape, scrape, (timeMs - since.timeMs) / 1000) });
    this.#forget(timeMs);
  }

  /** The server did not answer: the lines have a gap, and no rate reaches over it. */
  gap(timeMs) {
    this.#scrapes = [];
    if (this.points.at(-1)?.proposers) this.points.push({ timeMs, running: null, waiting: null, total: null });
    this.#forget(timeMs);
  }

  #forget(timeMs) {
    while (this.points.length && this.points[0].timeMs < timeMs - KEPT_S * 1000) this.points.shift();
  }
}

function rates(before, after, seconds) {
  const proposers = {};
  const sum = { drafts: 0, drafted: 0, accepted: 0, emitted: 0 };
  let total = seconds ? 0 : null;
  for (const [name, now] of Object.entries(after.proposers)) {
    const then = before.proposers[name] ?? { drafts: 0, drafted: 0, accepted: 0, emitted: 0 };
    const grown = {};
    // A counter that fell has restarted.
    for (const field of Object.keys(now)) grown[field] = now[field] < then[field] ? now[field] : now[field] - then[field];
    proposers[name] = figures(grown, seconds, name === "none");
    if (name !== "none") for (const field of ["drafts", "drafted", "accepted", "emitted"]) sum[field] += grown[field];
    if (seconds) total += grown.emitted / seconds;
  }
  const all = figures(sum, seconds, false);
  return { proposers, total, acceptance: all.acceptance, step: all.step };
}

function figures(grown, seconds, plain) {
  return {
    acceptance: grown.drafted ? grown.accepted / grown.drafted : null,
    step: !plain && grown.drafts ? grown.emitted / grown.drafts : null,
    perSecond: seconds ? grown.emitted / seconds : null,
  };
}
