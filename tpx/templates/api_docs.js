/* Each form sends its request to the server that the page came from, and shows the answer below it. */

const MOST_CHARACTERS = 20000;
const MOST_BYTES = 64;

function filled(form, place) {
  const values = {};
  for (const input of form.querySelectorAll(`input[data-place="${place}"]`)) {
    if (input.value !== "") values[input.name] = input.value;
  }
  return values;
}

/* Of the variants of the path the one that takes exactly what is filled in. */
function target(form) {
  const values = filled(form, "path");
  const names = Object.keys(values).sort().join();
  for (const path of form.dataset.paths.split(" ")) {
    const wanted = [...path.matchAll(/\{(\w+)\}/g)].map((match) => match[1]).sort().join();
    if (wanted === names) return path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name]));
  }
  throw new Error(`no path takes just: ${names || "nothing"}`);
}

function pretty(text) {
  let shown = text;
  try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it is */ }
  return shown.length > MOST_CHARACTERS ? `${shown.slice(0, MOST_CHARACTERS)}\n… ${shown.length} characters` : shown;
}

function bytesShown(bytes) {
  const hex = [...bytes.subarray(0, MOST_BYTES)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return `${bytes.length} bytes: ${hex}${bytes.length > MOST_BYTES ? " …" : ""}`;
}

function bodyShown(response, bytes) {
  const head = Number(response.headers.get("inference-header-content-length") ?? bytes.length);
  const text = new TextDecoder().decode(bytes.subarray(0, head));
  return head < bytes.length ? `${pretty(text)}\n${bytesShown(bytes.subarray(head))}` : pretty(text);
}

async function show(response, began, result) {
  const status = element("span", `${response.status} ${response.statusText}`, "status", ...(response.ok ? [] : ["bad"]));
  const line = element("p", "");
  const body = element("pre", "");
  line.append(status, " ", element("span", response.headers.get("content-type") ?? "no body", "muted"));
  result.replaceChildren(line, body);
  if ((response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (body.textContent.length < MOST_CHARACTERS) body.textContent += part.value;
    }
  } else {
    body.textContent = bodyShown(response, new Uint8Array(await response.arrayBuffer()));
  }
  body.hidden = body.textContent === "";
  line.append(element("span", ` in ${(performance.now() - began).toFixed(1)} ms`, "muted"));
}

/* What the form sends: a path, and the options of fetch. */
function request(form) {
  const options = { method: form.dataset.method, headers: filled(form, "header") };
  const body = form.elements.namedItem("body");
  if (body && body.value.trim() !== "") {
    options.body = body.value;
    options.headers["Content-Type"] = "application/json";
  }
  return [target(form), options];
}

async function send(form) {
  const result = form.closest(".card").querySelector(".result");
  const button = form.querySelector("button[type=submit]");
  result.hidden = false;
  button.disabled = true;
  try {
    const [path, options] = request(form);
    const began = performance.now();
    await show(await fetch(path, options), began, result);
  } catch (error) {
    result.replaceChildren(element("p", `Not sent, or not answered: ${error.message}`));
  } finally {
    button.disabled = false;
  }
}

/* A request of the right names, types and shapes, every variable dimension 1. */
async function fill(form) {
  const path = target(form).replace(/\/infer$/, "");
  const response = await fetch(path);
  const metadata = await response.json();
  if (!response.ok) throw new Error(metadata.error);
  const inputs = metadata.inputs.map(({ name, datatype, shape }) => {
    const dims = shape.map((dim) => (dim < 0 ? 1 : dim));
    const count = dims.reduce((product, dim) => product * dim, 1);
    if (count > 100000) throw new Error(`input ${name} has ${count} elements: too many for a form`);
    const zero = datatype === "BYTES" ? "" : datatype === "BOOL" ? false : 0;
    return { name, datatype, shape: dims, data: Array(count).fill(zero) };
  });
  form.elements.namedItem("body").value = form.dataset.example = JSON.stringify({ inputs });
  snippets(form);
}

const NUMPY = {
  BOOL: "bool", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16",
  INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object",
};

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/* A value of JSON as Python writes it. */
function python(value) {
  if (value === null || typeof value === "boolean") return { null: "None", true: "True", false: "False" }[value];
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${python(item)}`).join(", ")}}`;
}

function forShell(path, { method, headers, body }) {
  const words = ["curl", ...(method === "GET" ? [] : ["-X", method]), quoted(location.origin + path)];
  for (const [name, value] of Object.entries(headers)) words.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) words.push("-d", quoted(body));
  return words.join(" ");
}

function forPython(path, { method, headers, body }) {
  const words = [JSON.stringify(location.origin + path)];
  if (Object.keys(headers).length) words.push(`headers=${python(headers)}`);
  if (body !== undefined) words.push(`data=${JSON.stringify(body)}`);
  return `import requests\n\nanswer = requests.${method.toLowerCase()}(${words.join(", ")})\nprint(answer.status_code, answer.text)`;
}

/* An inference with tritonclient; undefined where the body is more than inputs with their data. */
function withTritonclient(form, { headers, body }) {
  let inputs;
  try { ({ inputs } = JSON.parse(body)); } catch { return undefined; }
  const known = ["data", "datatype", "name", "shape"].join();
  if (!Array.isArray(inputs) || !inputs.every((each) => Object.keys(each).sort().join() === known && each.datatype in NUMPY)) return undefined;
  const { model, version } = filled(form, "path");
  const lines = ["import numpy as np", "import tritonclient.http as triton", ""];
  lines.push(`client = triton.InferenceServerClient("${location.host}"${location.protocol.startsWith("https") ? ", ssl=True" : ""})`, "inputs = []");
  for (const { name, datatype, shape, data } of inputs) {
    const type = `"${NUMPY[datatype]}"`;
    const zeros = datatype !== "BYTES" && data.flat(Infinity).every((value) => !value);
    const array = zeros ? `np.zeros(${python(shape)}, ${type})` : `np.array(${python(data)}, ${type}).reshape(${python(shape)})`;
    lines.push(`inputs.append(triton.InferInput(${JSON.stringify(name)}, ${python(shape)}, "${datatype}"))`, `inputs[-1].set_data_from_numpy(${array})`);
  }
  const { "Content-Type": _, ...more } = headers;
  const words = [JSON.stringify(model), "inputs", ...(version ? [`model_version="${version}"`] : [])];
  if (Object.keys(more).length) words.push(`headers=${python(more)}`);
  return [...lines, `answer = client.infer(${words.join(", ")})`, "print(answer.get_response())"].join("\n");
}

/* The request of a form for a shell and for Python, beside it. */
function snippets(form) {
  const place = form.closest(".card").querySelector(".snippets");
  try {
    const [path, options] = request(form);
    const client = form.dataset.operation === "infer" ? withTritonclient(form, options) : undefined;
    place.querySelector(".curl").textContent = forShell(path, options);
    place.querySelector(".python").textContent = client ?? forPython(path, options);
    place.hidden = false;
  } catch {
    place.hidden = true; /* something is not filled in yet */
  }
}

for (const form of document.querySelectorAll("form[data-method]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  form.addEventListener("input", () => snippets(form));
  snippets(form);
  const button = form.querySelector(".fill");
  if (!button) continue;
  button.addEventListener("click", () => {
    const result = form.closest(".card").querySelector(".result");
    fill(form).catch((error) => {
      result.hidden = false;
      result.replaceChildren(element("p", error.message));
    });
  });
  /* The example is of the chosen model, until somebody writes a body. */
  const body = form.elements.namedItem("body");
  form.dataset.example = body.value;
  const follow = () => { if (body.value === form.dataset.example) fill(form).catch(() => {}); };
  form.elements.namedItem("model").addEventListener("change", follow);
  if (form.elements.namedItem("model").value) follow();
}

/* The events of a stream of OpenAI's API, as they arrive. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const found = (rest + part.value).split("\n\n");
    rest = found.pop();
    for (const event of found) if (event !== "data: [DONE]") yield JSON.parse(event.slice("data: ".length));
  }
}

/* A conversation with a language model; Stop ends the request, which frees the model. */
function startChat(card) {
  const [log, text, stop] = ["chat-log", "chat-text", "chat-stop"].map((id) => document.getElementById(id));
  const button = card.querySelector("button[type=submit]");
  let messages = [];
  let ending = new AbortController();

  async function answer(line) {
    const key = document.getElementById("chat-key").value;
    const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    const body = JSON.stringify({ model: document.getElementById("chat-model").value, messages, stream: true, stream_options: { include_usage: true } });
    const began = performance.now();
    let reason = "stopped";
    let usage;
    try {
      const response = await fetch("/v1/chat/completions", { method: "POST", headers, body, signal: ending.signal });
      if (!response.ok) throw new Error((await response.json()).error.message);
      for await (const { choices, error, ...more } of events(response)) {
        if (error) throw new Error(error.message);
        line.textContent += choices[0]?.delta.content ?? "";
        reason = choices[0]?.finish_reason ?? reason;
        usage = more.usage ?? usage;
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
    messages.push({ role: "assistant", content: line.textContent });
    const tokens = usage ? `${usage.completion_tokens} tokens, ` : "";
    line.append(element("span", `${reason}, ${tokens}${((performance.now() - began) / 1000).toFixed(1)} s`, "muted"));
  }

  card.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const line = element("p", "");
    messages.push({ role: "user", content: text.value });
    log.append(element("p", text.value, "user"), line);
    text.value = "";
    ending = new AbortController();
    [button.disabled, stop.disabled] = [true, false];
    try {
      await answer(line);
    } catch (error) {
      line.textContent += error.message;
      line.classList.add("bad");
      messages.pop();
    } finally {
      [button.disabled, stop.disabled] = [false, true];
    }
  });
  stop.addEventListener("click", () => ending.abort());
  document.getElementById("chat-new").addEventListener("click", () => {
    ending.abort();
    messages = [];
    log.replaceChildren();
  });
}

const chat = document.getElementById("chat");
if (chat) startChat(chat);

document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const item of document.querySelectorAll("nav li")) {
    item.hidden = !words.every((word) => item.dataset.find.toLowerCase().includes(word));
  }
});
