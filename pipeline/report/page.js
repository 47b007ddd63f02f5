"use strict";
// Columns are sorted by a click on their heading. Without this script all is there, in the order in which it came.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const th = button.parentElement;
    const table = th.closest("table");
    const index = [...th.parentElement.children].indexOf(th);
    const down = th.getAttribute("aria-sort") !== "descending";
    for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.children[index].dataset.v ?? row.children[index].textContent.trim();
    const number = th.classList.contains("n");
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.classList.contains("rest"));
    const last = [...body.rows].filter((row) => row.classList.contains("rest"));
    rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const order = number ? (x === "" ? -Infinity : Number(x)) - (y === "" ? -Infinity : Number(y)) : x.localeCompare(y);
      return (down ? -order : order) || 0;
    });
    body.append(...rows, ...last);
  });
}
// Commands are copied by a click; where the browser does not allow that, they are selected.
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
}
