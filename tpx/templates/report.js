/* Tables that are `filtered` have a search field and a choice of rows above them; without scripts they show all. */
for (const table of document.querySelectorAll("table.filtered")) {
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  bar.className = "filter";
  const find = Object.assign(document.createElement("input"), { type: "search", placeholder: "Filter rows, as in: config_4 on" });
  find.setAttribute("aria-label", "Show rows that contain all of these words");
  find.setAttribute("aria-controls", table.id);
  const kept = rows.filter((row) => "kept" in row.dataset), passing = rows.filter((row) => "passes" in row.dataset);
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Which rows to show");
  const choices = [["", `all ${rows.length}`]];
  if (kept.length < rows.length) choices.unshift(["kept", "the best, the default, and the Pareto front"]);
  if (passing.length < rows.length) choices.push(["passes", "what keeps the constraints"]);
  for (const [value, text] of choices) choice.append(new Option(text, value));
  const count = document.createElement("output");
  count.setAttribute("aria-live", "polite");
  const apply = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = (choice.value !== "" && !(choice.value in row.dataset)) || !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  find.addEventListener("input", apply);
  choice.addEventListener("change", apply);
  bar.append(find, ...(choices.length > 1 ? [choice] : []), count);
  table.closest(".scroll").before(bar);
  apply();
}

/* What a person wants to paste can be copied, where the browser allows it. */
for (const text of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) break;
  const copied = text.textContent, button = document.createElement("button");
  button.type = "button"; button.className = "copy"; button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(copied);
    button.textContent = "Copied";
  });
  text.append(button);
}

/* The figures of the page as files: the JSON as it stands here, and each table as CSV. */
for (const place of document.querySelectorAll(".downloads")) {
  const offer = (label, name, type, content) => {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = label;
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([content()], { type }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
    place.append(" ", button);
  };
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csv = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cell.classList.contains("number") && cell.dataset.sort !== undefined ? cell.dataset.sort : cell.innerText.trim())).join(",")).join("\n") + "\n";
  offer("Download JSON", `${place.dataset.file}.json`, "application/json", () => JSON.stringify(JSON.parse(document.getElementById("data").textContent), null, 2));
  for (const table of document.querySelectorAll("table.sortable[id$=measurements]")) offer("Download CSV", `${place.dataset.file}-${table.id}.csv`, "text/csv", () => csv(table));
}

/* Tables sort by a click on a column's header; a second click turns the order round. Empty cells stay last. */
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const numeric = body.rows[0] && body.rows[0].cells[column].classList.contains("number");
      const before = header.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : numeric;
      const direction = descending ? -1 : 1;
      const key = (row) => row.cells[column].dataset.sort;
      const rows = [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        return direction * (numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true }));
      });
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...rows);
    });
  });
}
