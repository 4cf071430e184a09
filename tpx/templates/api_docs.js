"use strict";
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

function element(name, text, ...classes) {
  const made = document.createElement(name);
  made.textContent = text;
  made.classList.add(...classes);
  return made;
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

async function send(form) {
  const result = form.closest(".card").querySelector(".result");
  const button = form.querySelector("button[type=submit]");
  result.hidden = false;
  button.disabled = true;
  try {
    const options = { method: form.dataset.method, headers: filled(form, "header") };
    const body = form.elements.namedItem("body");
    if (body && body.value.trim() !== "") {
      options.body = body.value;
      options.headers["Content-Type"] = "application/json";
    }
    const began = performance.now();
    await show(await fetch(target(form), options), began, result);
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
  form.elements.namedItem("body").value = JSON.stringify({ inputs });
}

for (const form of document.querySelectorAll("form[data-method]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  form.querySelector(".fill")?.addEventListener("click", () => {
    const result = form.closest(".card").querySelector(".result");
    fill(form).catch((error) => {
      result.hidden = false;
      result.replaceChildren(element("p", error.message));
    });
  });
}

document.getElementById("find").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const item of document.querySelectorAll("nav li")) {
    item.hidden = !words.every((word) => item.dataset.find.toLowerCase().includes(word));
  }
});
