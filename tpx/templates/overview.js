/* Asks the server, and draws what changed. */

const MOST_ERRORS = 20;
const controlled = document.body.dataset.controlled === "yes";
const models = new Map();
const headers = {};
let before = null;

class Refused extends Error {}

async function ask(path, options = {}) {
  const response = await fetch(path, { cache: "no-store", ...options, headers: { ...headers } });
  if (response.status === 403) throw new Refused(path);
  return response;
}

async function json(path, options) {
  const response = await ask(path, options);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

/* The gauges of the metrics page: a name and its labels as they stand, and the value. */
async function gauges() {
  const response = await ask("/metrics");
  if (!response.ok) return new Map();
  const found = new Map();
  for (const line of (await response.text()).split("\n")) {
    const match = /^(nv_(?:cpu|gpu|inference_pending)\w*|process_resident_memory_bytes|tpx_event_loop_utilization|tpx_advised_frontends)(\{.*\})? (\S+)$/.exec(line);
    if (match) found.set(match[1] + (match[2] ?? ""), Number(match[3]));
  }
  return found;
}

function labelled(found, name) {
  return [...found].filter(([key]) => key === name || key.startsWith(`${name}{`));
}

const key = (model) => `${model.name}:${model.version ?? ""}`;

/* Reads everything once; what a key hides is asked for. */
async function read() {
  const parts = [
    json("/v2/repository/index", { method: "POST", body: "{}" }), json("/v2/models/stats"), gauges(), ask("/v2/health/ready"),
  ];
  const [index, statistics, machine, ready] = await Promise.allSettled(parts);
  const failed = [index, statistics, machine, ready].find((part) => part.status === "rejected");
  if (failed && !(failed.reason instanceof Refused)) throw failed.reason;
  find("key").hidden = !failed;
  const value = (part, otherwise) => part.status === "fulfilled" ? part.value : otherwise;
  return {
    at: performance.now(), index: value(index, []), stats: value(statistics, { model_stats: [] }).model_stats,
    machine: value(machine, new Map()), ready: value(ready, { ok: false }).ok,
  };
}

function tally(statistics) {
  const inner = statistics.inference_stats;
  return {
    success: Number(inner.success.count), ns: Number(inner.success.ns), failed: Number(inner.fail.count),
    queue: Number(inner.queue.ns),
    compute: Number(inner.compute_input.ns) + Number(inner.compute_infer.ns) + Number(inner.compute_output.ns),
  };
}

/* What happened between two readings, for a model or all of them. */
function change(now, then, elapsed_s) {
  const delta = (field) => Math.max(0, now[field] - (then?.[field] ?? now[field]));
  const count = delta("success");
  return {
    rate: count / elapsed_s, failures: delta("failed"), latency: delta("ns") / count, queue: delta("queue") / count,
    compute: delta("compute") / count, inFlight: delta("ns") / 1e9 / elapsed_s,
  };
}

function place(entry) {
  const id = key(entry);
  if (!models.has(id)) {
    const row = document.createElement("tr");
    models.set(id, { id, name: entry.name, row, rates: [], tally: null, change: null, instances: "", entry });
  }
  return models.get(id);
}

function note(text) {
  const list = find("errors");
  if (!list.querySelector("time")) list.replaceChildren();
  const line = document.createElement("li");
  line.append(element("time", new Date().toLocaleTimeString()), text);
  list.prepend(line);
  while (list.children.length > MOST_ERRORS) list.lastChild.remove();
}

function digest(found) {
  const elapsed_s = before ? (found.at - before.at) / 1000 : NaN;
  const whole = { success: 0, ns: 0, failed: 0, queue: 0, compute: 0 };
  const changes = [];
  const pending = new Map();
  for (const [name, value] of labelled(found.machine, "nv_inference_pending_request_count")) {
    const model = /model="((?:[^"\\]|\\.)*)"/.exec(name);
    const version = /version="(\d+)"/.exec(name);
    if (model) pending.set(`${JSON.parse(`"${model[1]}"`)}:${version?.[1] ?? ""}`, value);
  }
  const seen = new Set();
  for (const entry of found.index) {
    const model = place(entry);
    seen.add(model.id);
    const reason = entry.state === "UNAVAILABLE" && entry.reason !== "unloaded" ? entry.reason : "";
    if (reason && model.reason !== reason) note(`${entry.name}: ${reason}`);
    Object.assign(model, { entry, reason, queued: pending.get(`${entry.name}:${entry.version}`) ?? 0 });
  }
  for (const [id, model] of models) {
    if (!seen.has(id) && found.index.length) { model.row.remove(); models.delete(id); }
  }
  for (const statistics of found.stats) {
    const model = place(statistics);
    const now = tally(statistics);
    model.change = change(now, model.tally, elapsed_s);
    if (model.change.failures && before) note(`${model.name}: ${number(model.change.failures)} requests failed`);
    model.tally = now;
    model.rates.push([found.at, model.change.rate]);
    keep(model.rates, ([at]) => at, found.at);
    if (!isEnsemble(model)) changes.push(model.change);
  }
  if (before) history.push({ at: found.at, ...sum(changes), queued: [...pending.values()].reduce((a, b) => a + b, 0), machine: found.machine });
  keep(history, (sample) => sample.at, found.at);
  before = found;
}

/* The steps of an ensemble count their own requests. */
const isEnsemble = (model) => model.config?.platform === "ensemble";

function sum(changes) {
  const total = (field) => changes.reduce((all, one) => all + (one[field] || 0), 0);
  const rate = total("rate");
  const weighted = (field) => changes.reduce((all, one) => all + (one.rate ? one[field] * one.rate : 0), 0) / rate;
  return { rate, failures: total("failures"), inFlight: total("inFlight"), latency: weighted("latency"), queue: weighted("queue") };
}

function eventLoop(at) {
  const advised = at.machine.get("tpx_advised_frontends");
  return `event loop ${percent(at.machine.get("tpx_event_loop_utilization"))}${advised ? `: --frontends ${advised} would help` : ""}`;
}

/* A server without metrics has no charts of its machine. */
const CHARTS = [
  { title: "Requests per second", lines: [["first", (at) => at.rate]], shown: (at) => number(at.rate) },
  { title: "Mean latency", lines: [["first", (at) => at.latency], ["second", (at) => at.queue]], shown: (at) => duration(at.latency), more: (at) => `of it queued ${duration(at.queue)}`, format: duration },
  { title: "In flight", lines: [["first", (at) => at.inFlight], ["second", (at) => at.queued]], shown: (at) => number(at.inFlight), more: (at) => `queued ${number(at.queued)}` },
  { title: "Memory of the server", machine: true, lines: [["first", (at) => at.machine.get("process_resident_memory_bytes")]], shown: (at) => bytes(at.machine.get("process_resident_memory_bytes")), more: (at) => `machine ${percent(at.machine.get("nv_cpu_memory_used_bytes") / at.machine.get("nv_cpu_memory_total_bytes"))}`, format: bytes },
  { title: "Processors of the machine", machine: true, lines: [["first", (at) => at.machine.get("nv_cpu_utilization")]], shown: (at) => percent(at.machine.get("nv_cpu_utilization")), more: eventLoop, format: percent, most: 1 },
];

function gpuCharts() {
  return labelled(before.machine, "nv_gpu_utilization").map(([name], at) => {
    const labels = name.slice("nv_gpu_utilization".length);
    const read = (what) => (sample) => sample.machine.get(`nv_gpu_${what}${labels}`);
    return {
      title: `GPU ${at}`, format: percent, most: 1,
      lines: [["first", read("utilization")], ["second", (sample) => read("memory_used_bytes")(sample) / read("memory_total_bytes")(sample)]],
      shown: (sample) => percent(read("utilization")(sample)), more: (sample) => `memory ${bytes(read("memory_used_bytes")(sample))}`,
    };
  });
}

function cells(model, now) {
  const { entry, change: seen } = model;
  const version = (entry.version ?? "1") === "1" ? "" : ` ${entry.version}`;
  const state = entry.state === "READY" ? "ready" : entry.reason || (entry.state ?? "").toLowerCase() || "unknown";
  const split = element("td", "");
  if (seen?.rate) {
    const bar = element("div", "", "split");
    for (const part of ["queue", "compute"]) {
      const piece = element("i", "", part);
      piece.style.setProperty("width", `${Math.min(100, (100 * seen[part]) / seen.latency)}%`);
      bar.append(piece);
    }
    bar.title = `queue ${duration(seen.queue)}, compute ${duration(seen.compute)}`;
    split.append(bar);
  }
  const stateCell = element("td", state, "state", ...(model.reason ? ["bad"] : []));
  stateCell.title = state;
  const nameCell = element("td", entry.name + version);
  nameCell.title = entry.name;
  const made = [
    nameCell, stateCell, element("td", model.instances),
    element("td", seen ? number(seen.rate) : "–", "number"), element("td", duration(seen?.latency ?? NaN), "number"), split,
    element("td", seen ? number(seen.inFlight) : "–", "number"), element("td", number(model.queued ?? 0), "number"),
    element("td", number(model.tally?.failed ?? 0), "number"), courseCell(model.rates, now),
  ];
  if (controlled) {
    const cell = element("td", "");
    const verb = entry.state === "READY" ? "unload" : "load";
    const button = element("button", verb[0].toUpperCase() + verb.slice(1));
    button.disabled = model.waiting ?? false;
    button.addEventListener("click", () => control(model, verb));
    cell.append(button);
    made.push(cell);
  }
  return made;
}

async function control(model, verb) {
  model.waiting = true;
  try {
    const response = await ask(`/v2/repository/models/${encodeURIComponent(model.name)}/${verb}`, { method: "POST", body: "{}" });
    if (!response.ok) note(`${model.name}: ${(await response.json()).error}`);
  } catch (error) {
    note(`${model.name}: ${error.message}`);
  }
  model.waiting = false;
  model.config = undefined;
  poll();
}

function draw() {
  find("server").textContent = before.ready ? "ready" : "not ready";
  find("server").className = `badge ${before.ready ? "good" : "bad"}`;
  find("charts").replaceChildren(...[...CHARTS, ...gpuCharts()].map(drawChart).filter(Boolean));
  const wanted = find("find").value.toLowerCase();
  const shown = [...models.values()].filter((model) =>
    model.name.toLowerCase().includes(wanted) && (!find("busy").checked || model.change?.rate || model.queued));
  shown.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }) || one.entry.version - other.entry.version);
  const focused = document.activeElement;
  if (!(focused instanceof HTMLButtonElement && find("models").contains(focused))) {
    for (const model of shown) {
      model.row.className = model.entry.state === "READY" ? "" : "unloaded";
      model.row.replaceChildren(...cells(model, before.at));
    }
    find("models").tBodies[0].replaceChildren(...shown.map((model) => model.row));
  }
  const ready = [...models.values()].filter((model) => model.entry.state === "READY").length;
  find("models-count").textContent = `${ready} of ${models.size} models ready`;
  find("none").hidden = shown.length > 0;
  find("none").textContent = models.size ? "No model matches." : "No models.";
}

const KINDS = { KIND_CPU: "CPU", KIND_GPU: "GPU", KIND_MODEL: "model", KIND_AUTO: "auto" };

/* Configurations change with a load only; one after the other, so that 200 models do not come at once. */
async function readConfigurations() {
  for (const model of models.values()) {
    if (model.config !== undefined || model.entry.state !== "READY") continue;
    model.config = null;
    try {
      const version = model.entry.version ? `/versions/${model.entry.version}` : "";
      model.config = await json(`/v2/models/${encodeURIComponent(model.name)}${version}/config`);
    } catch { continue; }
    const groups = (model.config.instance_group ?? []).map((group) => `${group.count ?? 1} × ${KINDS[group.kind] ?? group.kind}`);
    model.instances = isEnsemble(model) ? "ensemble" : groups.join(", ");
  }
}

const poll = startPolling("server", async () => {
  digest(await read());
  find("trouble").hidden = true;
  await readConfigurations();
  draw();
});

find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  headers[form.get("name")] = form.get("value");
  poll();
});
for (const id of ["find", "busy"]) find(id).addEventListener("input", () => before && draw());
