// Runs in an isolated world of every document, before the page's own scripts. Keeps native popups shut: they are windows of their own,
// which screenshots do not show and begin-frame control does not draw. A drop-down is chosen from by keyboard or by the select action.
(() => {
  const pickers = new Set(["color", "date", "datetime-local", "file", "month", "time", "week"]);
  const isDropDown = (node) => node instanceof HTMLSelectElement && !node.multiple && node.size < 2;
  addEventListener("mousedown", (event) => {
    const select = event.target instanceof Element ? event.target.closest("select") : null;
    if (isDropDown(select)) {
      event.preventDefault();
      if (!select.disabled) select.focus();
    }
  }, true);
  addEventListener("keydown", (event) => {
    const opens = event.key === "F4" || event.key === " " || event.key === "Enter" || (event.altKey && event.key.startsWith("Arrow"));
    if (isDropDown(event.target) && opens) event.preventDefault();
  }, true);
  addEventListener("click", (event) => {
    if (event.target instanceof HTMLInputElement && pickers.has(event.target.type)) event.preventDefault();
  }, true);
})();
