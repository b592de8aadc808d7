// (x, y, option) => reason or "": chooses an option of the drop-down at a point by its visible text, as a person would.
(x, y, option) => {
  const clean = (text) => text.replace(/\s+/g, " ").trim();
  const hit = document.elementFromPoint(x, y);
  const label = hit && hit.closest("label");
  const select = hit && (hit.closest("select") || (label && label.control));
  if (!(select instanceof HTMLSelectElement)) return "there is no drop-down at this point";
  if (select.disabled) return "the drop-down is disabled";
  const options = [...select.options].filter((each) => !each.disabled);
  const chosen = options.find((each) => clean(each.text) === clean(option))
    || options.find((each) => clean(each.text).toLowerCase() === clean(option).toLowerCase());
  if (!chosen) return `the drop-down has no option ${JSON.stringify(option)}`;
  select.focus();
  if (select.multiple || select.selectedIndex !== chosen.index) {
    chosen.selected = true;
    select.dispatchEvent(new Event("input", { bubbles: true }));
    select.dispatchEvent(new Event("change", { bubbles: true }));
  }
  return "";
}
