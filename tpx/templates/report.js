"use strict";
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
