{# SPDX-License-Identifier: Apache-2.0 -#}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true })));
      if (down) rows.reverse();
      body.append(...rows.map(([, row]) => row));
    });
  });
}
