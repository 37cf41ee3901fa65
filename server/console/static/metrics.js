// Figures of `/metrics`, kept for five minutes, and the rates that the charts and tiles show.

export const KEPT_S = 300;
const WINDOW_S = 10;
const LONG_WINDOW_S = 60;

/** Fewer drafted tokens than this say little about a proposer. */
export const FEW = 20;

const BY_PROPOSER = {
  drafts: "specgate_spec_decode_drafts_total",
  drafted: "specgate_spec_decode_draft_tokens_total",
  accepted: "specgate_spec_decode_accepted_tokens_total",
  emitted: "specgate_spec_decode_emitted_tokens_total",
};
const TTFT = "vllm:time_to_first_token_seconds_bucket";
const TPOT = "vllm:request_time_per_output_token_seconds_bucket";
const STEP_SUM = "specgate_step_seconds_sum";
const STEP_COUNT = "specgate_step_seconds_count";
const HTTP = "specgate_http_requests_total";
const GAIN = "specgate_policy_expected_gain";
const ACTIVE = "specgate_spec_method_info";

/** Sample -> the label by which its values are told apart; the values of other labels are added. */
const LABELS = {
  ...Object.fromEntries(Object.values(BY_PROPOSER).map((name) => [name, "proposer"])),
  [TTFT]: "le", [TPOT]: "le", [STEP_SUM]: "kind", [STEP_COUNT]: "kind", [HTTP]: "status", [GAIN]: "policy", [ACTIVE]: "spec_method",
  "vllm:num_requests_running": null, "vllm:num_requests_waiting": null, "specgate_queued_requests": null,
  "vllm:kv_cache_usage_perc": "engine",
};

/** The path that returns only what is read here, which costs the server little. */
export const PATH = "metrics?" + Object.keys(LABELS).map((name) => `name[]=${encodeURIComponent(name)}`).join("&");

const SAMPLE = /^([\w:]+)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** A scrape's text as {sample: {value of its label: sum}}. */
export function parse(text) {
  const scrape = Object.fromEntries(Object.keys(LABELS).map((name) => [name, {}]));
  for (const line of text.split("\n")) {
    const match = SAMPLE.exec(line);
    if (!match || !(match[1] in LABELS)) continue;
    const [, name, labels = "", value] = match;
    const wanted = LABELS[name];
    let key = "";
    if (wanted) for (const [, label, written] of labels.matchAll(LABEL)) if (label === wanted) key = written.replace(/\\(.)/g, "$1");
    scrape[name][key] = (scrape[name][key] ?? 0) + Number(value);
  }
  return scrape;
}

const sumOf = (values) => Object.values(values).reduce((sum, value) => sum + value, 0);
const gauge = (scrape, name) => sumOf(scrape[name]);

/** The scrapes of the last minutes, and what each says about the seconds before it. */
export class History {
  #scrapes = [];
  points = [];
  /** The slower figures of the last minute: latencies, errors, the gain. */
  minute = {};

  /** Adds a scrape; `extra` has figures of other routes. */
  add(scrape, timeMs, extra = {}) {
    this.#scrapes.push({ timeMs, scrape });
    this.#dropBefore(timeMs - LONG_WINDOW_S * 1000);
    const since = this.#before(timeMs - WINDOW_S * 1000);
    this.points.push({ timeMs, ...extra,
      // A request in the gateway's queue may have a sequence in the engine's, too.
      running: gauge(scrape, "vllm:num_requests_running"),
      waiting: Math.max(gauge(scrape, "vllm:num_requests_waiting"), gauge(scrape, "specgate_queued_requests")),
      ...rates(since.scrape, scrape, (timeMs - since.timeMs) / 1000) });
    this.minute = minuteFigures(this.#scrapes[0].scrape, scrape);
    this.#forget(timeMs);
  }

  /** The server did not answer: the lines have a gap, and no rate reaches over it. */
  gap(timeMs) {
    this.#scrapes = [];
    this.minute = {};
    if (this.points.at(-1)?.proposers) this.points.push({ timeMs, running: null, waiting: null, total: null });
    this.#forget(timeMs);
  }

  #dropBefore(timeMs) {
    while (this.#scrapes.length > 2 && this.#scrapes[1].timeMs <= timeMs) this.#scrapes.shift();
  }

  /** The newest scrape that is at least so old, or the oldest. */
  #before(timeMs) {
    return this.#scrapes.findLast((one) => one.timeMs <= timeMs) ?? this.#scrapes[0];
  }

  #forget(timeMs) {
    while (this.points.length && this.points[0].timeMs < timeMs - KEPT_S * 1000) this.points.shift();
  }
}

/** How much each value of a counter grew. One that fell has restarted. */
function growth(before, after, name) {
  return Object.fromEntries(Object.entries(after[name]).map(([key, now]) => {
    const then = before[name][key] ?? 0;
    return [key, now < then ? now : now - then];
  }));
}

function rates(before, after, seconds) {
  const grown = Object.fromEntries(Object.entries(BY_PROPOSER).map(([field, name]) => [field, growth(before, after, name)]));
  const proposers = {};
  const sum = { drafts: 0, drafted: 0, accepted: 0, emitted: 0 };
  let total = seconds ? 0 : null;
  for (const name of Object.keys(grown.emitted)) {
    const counts = Object.fromEntries(Object.keys(BY_PROPOSER).map((field) => [field, grown[field][name] ?? 0]));
    proposers[name] = figures(counts, seconds, name === "none");
    if (name !== "none") for (const field of Object.keys(sum)) sum[field] += counts[field];
    if (seconds) total += counts.emitted / seconds;
  }
  const all = figures(sum, seconds, false);
  return { proposers, total, acceptance: all.acceptance, step: all.step, drafted: all.drafted };
}

function figures(grown, seconds, plain) {
  return {
    acceptance: grown.drafted ? grown.accepted / grown.drafted : null,
    step: !plain && grown.drafts ? grown.emitted / grown.drafts : null,
    perSecond: seconds ? grown.emitted / seconds : null,
    drafted: grown.drafted,
  };
}

function minuteFigures(before, after) {
  const errors = growth(before, after, HTTP);
  const kv = Object.values(after["vllm:kv_cache_usage_perc"]);
  return {
    ttft: quantiles(growth(before, after, TTFT)),
    tpot: quantiles(growth(before, after, TPOT)),
    errors: sumOf(Object.fromEntries(Object.entries(errors).filter(([status]) => status.startsWith("5")))),
    kv: kv.length ? Math.max(...kv) : null,
    active: Object.entries(after[ACTIVE]).find(([, value]) => value)?.[0] ?? null,
    ...gainOf(before, after),
  };
}

/**
 * The speed beside plain decoding's: what the active policy expects, or an estimate as in docs/metrics.md:
 * tokens per step, times the time of a plain step, divided by the time of a step that verifies.
 */
function gainOf(before, after) {
  const active = Object.entries(after[ACTIVE]).find(([, value]) => value)?.[0];
  if (active === "none") return { gain: 1, gainNote: "plain decoding is active" };
  const expected = after[GAIN][active];
  if (expected) return { gain: expected, gainNote: `as ${active} expects` };
  const counts = rates(before, after, 1);
  const [plain, verify] = [meanStep(null, after, "decode"), meanStep(before, after, "verify")];
  if ((counts.drafted ?? 0) < FEW || verify === null) return { gain: null, gainNote: "too few drafts in the last minute" };
  if (plain === null) return { gain: null, gainNote: "no plain step to compare with: a request with the method none makes some" };
  return { gain: (counts.step * plain) / verify, gainNote: "estimated from step times" };
}

function meanStep(before, after, kind) {
  const zero = { [STEP_SUM]: {}, [STEP_COUNT]: {} };
  const [sum, count] = [STEP_SUM, STEP_COUNT].map((name) => growth(before ?? zero, after, name)[kind] ?? 0);
  return count ? sum / count : null;
}

/** The median and the 95th percentile in seconds, between the bounds of the buckets; null without values. */
function quantiles(buckets) {
  const bounds = Object.entries(buckets).map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count])
    .sort(([a], [b]) => a - b);
  const total = bounds.at(-1)?.[1] ?? 0;
  if (!total) return null;
  return [0.5, 0.95].map((share) => {
    const rank = share * total;
    const i = bounds.findIndex(([, count]) => count >= rank);
    const [low, below] = i ? bounds[i - 1] : [0, 0];
    const [high, count] = bounds[i];
    return high === Infinity ? low : low + ((high - low) * (rank - below)) / (count - below || 1);
  });
}
