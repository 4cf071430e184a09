/* Charts of the last ten minutes, and tables beside them. */

const EVERY_MS = 2000;
const KEPT_MS = 600000;
const LEAST_SHOWN_MS = 60000;
/* What was measured: `at`, and a value for each line of the charts. */
const history = [];

const find = (id) => document.getElementById(id);

/* Three digits are what a person compares. */
function number(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && value < 100) return String(Number(value.toPrecision(3)));
  return Math.round(value).toLocaleString("en");
}

function duration(ns) {
  if (!Number.isFinite(ns)) return "–";
  if (ns < 1e6) return `${number(ns / 1e3)} µs`;
  return ns < 1e9 ? `${number(ns / 1e6)} ms` : `${number(ns / 1e9)} s`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; unit++) count /= 1024;
  return `${number(count)} ${units[unit]}`;
}

const percent = (share) => `${number(share * 100)} %`;

/* Keeps a list of [time, value] or of samples, its oldest first, as long as it is shown. */
function keep(list, time, now) {
  while (list.length && time(list[0]) < now - KEPT_MS) list.shift();
}

/* What is shown grows with what is known, up to ten minutes. */
const span = () => Math.min(KEPT_MS, Math.max(LEAST_SHOWN_MS, history.length ? history.at(-1).at - history[0].at : 0));

function path(points, most, width, height, now) {
  let drawn = "";
  let open = false;
  for (const [at, value] of points) {
    if (!Number.isFinite(value)) { open = false; continue; }
    const x = width * (1 - (now - at) / span()), y = height * (1 - value / most);
    drawn += `${open ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    open = true;
  }
  return drawn;
}

function svg(width, height, ...paths) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("viewBox", `0 -2 ${width} ${height + 4}`);
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("aria-hidden", "true");
  for (const [kind, drawn] of paths) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("class", kind);
    line.setAttribute("d", drawn);
    made.append(line);
  }
  return made;
}

/* The end of a scale: 1, 2 or 5 times a power of ten, or a power of two. */
function round(value, base = 10) {
  if (base === 2) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => step * power >= value) * power;
}

function drawChart(chart) {
  const format = chart.format ?? number;
  const lines = chart.lines.map(([kind, of]) => [kind, history.map((at) => [at.at, of(at)])]);
  const values = lines.flatMap(([, points]) => points.map(([, value]) => value)).filter(Number.isFinite);
  if (chart.machine && history.length && !values.length) return null;
  const most = chart.most ?? round(Math.max(...values, 1e-9), chart.format === bytes ? 2 : 10);
  const card = element("div", "", "chart");
  const now = history.at(-1);
  const figure = element("p", now ? chart.shown(now) : "–", "now");
  if (now && chart.more) figure.append(" ", element("small", chart.more(now)));
  const top = element("div", "", "axis");
  top.append(element("span", chart.most || values.some((value) => value > 0) ? format(most) : "\u00a0"));
  const bottom = element("div", "", "axis");
  bottom.append(element("span", `${number(Math.ceil(span() / 60000))} min ago`), element("span", "now"));
  const drawn = lines.map(([kind, points]) => [kind, path(points, most, 300, 80, now?.at ?? 0)]);
  card.append(element("h3", chart.title), figure, top, svg(300, 80, ["grid", "M0 0H300M0 40H300M0 80H300"], ...drawn), bottom);
  return card;
}

/* A cell with the course of [time, value] points. */
function courseCell(points, now) {
  const most = round(Math.max(...points.map(([, value]) => value || 0), 1e-9));
  const cell = element("td", "");
  cell.append(svg(130, 22, ["grid", "M0 22H130"], ["first", path(points, most, 130, 22, now)]));
  return cell;
}

/* Calls `refresh` every two seconds while the page can be seen, and tells if it fails; returns how to do so at once. */
function startPolling(what, refresh) {
  let timer = 0;
  async function poll() {
    clearTimeout(timer);
    try {
      await refresh();
    } catch (error) {
      find(what).textContent = "no answer";
      find(what).className = "badge bad";
      find("trouble").textContent = `The ${what} does not answer: ${error.message}`;
      find("trouble").hidden = false;
    }
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(poll, EVERY_MS);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  poll();
  return poll;
}
