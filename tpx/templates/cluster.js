/* Asks for the cluster's status, and draws it. */

const rates = new Map();

const ms = (value) => (Number.isFinite(value) ? duration(value * 1e6) : "–");

/* The load of all replicas that are ready; the p99 of all is that of the slowest. */
function digest(status, at) {
  const ready = status.replicas.filter((row) => row.state === "ready");
  const samples = ready.map((row) => row.sample);
  const total = (field) => samples.reduce((all, sample) => all + sample[field], 0);
  const rate = total("requests_per_s");
  const tails = samples.map((sample) => sample.p99_ms).filter((value) => value !== null);
  history.push({
    at, rate, ready: ready.length, desired: status.desired, used: total("utilization") / ready.length,
    p99: tails.length ? Math.max(...tails) : NaN,
    queue: samples.reduce((all, sample) => all + sample.queue_ms * sample.requests_per_s, 0) / rate,
  });
  keep(history, (sample) => sample.at, at);
  for (const row of status.replicas) {
    if (!rates.has(row.name)) rates.set(row.name, []);
    rates.get(row.name).push([at, row.state === "ready" ? row.sample.requests_per_s : NaN]);
    keep(rates.get(row.name), ([time]) => time, at);
  }
  for (const name of rates.keys()) if (!status.replicas.some((row) => row.name === name)) rates.delete(name);
}

const CHARTS = [
  { title: "Requests per second", lines: [["first", (at) => at.rate]], shown: (at) => number(at.rate) },
  { title: "p99 of a minute, slowest replica", lines: [["first", (at) => at.p99], ["second", (at) => at.queue]], shown: (at) => ms(at.p99), more: (at) => `mean queue ${ms(at.queue)}`, format: ms },
  { title: "Replicas ready", lines: [["first", (at) => at.ready], ["second", (at) => at.desired]], shown: (at) => number(at.ready), more: (at) => `of ${number(at.desired)} desired` },
  { title: "CPU of the replicas' reservation", lines: [["first", (at) => at.used]], shown: (at) => percent(at.used), format: percent },
];

function cells(row, at) {
  const sample = row.sample;
  const state = element("td", row.state, "state", ...(["failed", "lost", "waiting"].includes(row.state) ? ["bad"] : []));
  return [
    element("td", row.name), element("td", row.host), state, element("td", String(row.release), "number"),
    element("td", number(row.models), "number"), element("td", number(sample.requests_per_s), "number"),
    element("td", ms(sample.p99_ms ?? NaN), "number"), element("td", ms(sample.queue_ms), "number"),
    element("td", percent(sample.utilization), "number"), element("td", number(row.restarts), "number"),
    courseCell(rates.get(row.name), at), element("td", row.message, "message"),
  ];
}

function draw(status, at) {
  const down = status.balancers.filter((each) => !each.running).map((each) => each.node);
  const ready = status.replicas.filter((row) => row.state === "ready").length;
  const good = ready >= status.desired && !down.length;
  document.title = `${status.name} - tpx cluster`;
  find("cluster").textContent = good ? "ready" : ready ? "degraded" : "not ready";
  find("cluster").className = `badge ${good ? "good" : ready ? "warn" : "bad"}`;
  const update = status.update ? `, ${status.update.rolling_back ? "back from" : "update to"} release ${status.update.to_release}` : "";
  find("release").textContent = `${status.name}, release ${status.release}${update}`;
  const nodes = status.balancers.map((each) => each.node).join(", ");
  find("balancers").textContent = `HAProxy on ${nodes}` + (down.length ? `; not running on ${down.join(", ")}` : "");
  find("trouble").textContent = status.fault;
  find("trouble").hidden = !status.fault;
  find("charts").replaceChildren(...CHARTS.map(drawChart).filter(Boolean));
  const rows = status.replicas.map((row) => {
    const made = element("tr", "");
    made.append(...cells(row, at));
    return made;
  });
  find("replicas").tBodies[0].replaceChildren(...rows);
  find("events").replaceChildren(...[...status.events].reverse().map((event) => {
    const [time, ...words] = event.split(" ");
    const line = element("li", "");
    line.append(element("time", time), words.join(" "));
    return line;
  }));
}

startPolling("cluster", async () => {
  const response = await fetch("/status", { cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  const at = performance.now();
  digest(answer, at);
  draw(answer, at);
});
