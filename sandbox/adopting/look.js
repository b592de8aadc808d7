// What can be done and read on a page, and where a thing that was found before stands now. The file is one expression, a function:
//
//   ({find})  with a locator: where that is, or null
//   ({})      links, fields, toggles, tables and facts of the page, each with its locator
//
// A locator is {tag, name, key, nth}: `name` is what a person calls it, `key` what tells it from others of that name (an address, the name
// of a field), `nth` which of several that are alike. Only what shows is found.
((asked) => {
  "use strict";
  const MAX = { links: 250, fields: 40, toggles: 60, rows: 40, tables: 8, cell: 200 };
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const FIELDS = "input, textarea, select";
  const TOGGLES = "summary, [aria-expanded], [role=tab], [role=switch], [role=checkbox]";

  function shows(element) {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    return box.width > 1 && box.height > 1 && style.visibility === "visible" && style.opacity !== "0" && element.checkVisibility();
  }

  function said(element) {
    const by = element.getAttribute("aria-labelledby");
    const other = by && document.getElementById(by.split(" ")[0]);
    return clean(other ? other.innerText : element.getAttribute("aria-label"));
  }

  // As elements.js names it, so that an instruction says what an agent reads; fields, which elements.js shows by their values, by labels.
  function nameOf(element) {
    const tag = element.tagName;
    if (tag === "INPUT" && ["submit", "button", "reset"].includes(element.type)) return clean(element.value) || said(element);
    if (["INPUT", "TEXTAREA", "SELECT"].includes(tag)) {
      const label = element.labels && element.labels.length ? clean(labelText(element.labels[0])) : "";
      const text = label || said(element) || clean(element.placeholder) || clean(element.title) || beside(element);
      return text.replace(/[\s:*]+$/, "");
    }
    return clean(element.innerText) || said(element) || clean(element.getAttribute("title") || element.getAttribute("alt"));
  }

  function labelText(label) {
    const copy = label.cloneNode(true);
    copy.querySelectorAll(FIELDS + ", button").forEach((each) => each.remove());
    return copy.textContent;
  }

  // The text that stands before a field without a label: in the cell before it, or in its own cell or line.
  function beside(element) {
    const cell = element.closest("td");
    const before = cell && cell.previousElementSibling;
    if (before) return clean(before.innerText).slice(0, 60);
    const sibling = element.previousElementSibling;
    return sibling && !sibling.matches(FIELDS) ? clean(sibling.innerText).slice(0, 60) : "";
  }

  function keyOf(element) {
    if (element.tagName === "A") return element.getAttribute("href") || "";
    if (element.matches(FIELDS)) return element.getAttribute("name") || element.id || "";
    return "";
  }

  const groups = new Map();
  const idOf = (element) => JSON.stringify([keyOf(element), nameOf(element)]);

  // Each tag's elements are grouped once: a page may have thousands of cells.
  function alike(element) {
    const tag = element.tagName.toLowerCase();
    if (!groups.has(tag)) {
      const byId = new Map();
      for (const each of document.querySelectorAll(tag)) {
        if (!shows(each)) continue;
        const id = idOf(each);
        if (!byId.has(id)) byId.set(id, []);
        byId.get(id).push(each);
      }
      groups.set(tag, byId);
    }
    return groups.get(tag).get(idOf(element)) || [];
  }

  const locator = (element) => ({
    tag: element.tagName.toLowerCase(), name: nameOf(element), key: keyOf(element), nth: Math.max(0, alike(element).indexOf(element)),
  });

  function stateOf(element) {
    if (element.tagName === "SUMMARY") return String(element.parentElement.open === true);
    if (element.tagName === "SELECT") return element.selectedOptions.length ? clean(element.selectedOptions[0].label) : "";
    if (element.matches("input[type=checkbox], input[type=radio]")) return String(element.checked);
    if (element.matches(FIELDS)) return element.value;
    for (const name of ["aria-expanded", "aria-selected", "aria-checked"]) {
      if (element.hasAttribute(name)) return element.getAttribute(name);
    }
    return "";
  }

  if (asked.find) {
    const wanted = asked.find;
    const found = [...document.querySelectorAll(wanted.tag)].filter(
      (each) => keyOf(each) === wanted.key && shows(each) && nameOf(each) === wanted.name)[wanted.nth];
    if (!found) return null;
    // of a link that runs over lines, the first line
    const box = [...found.getClientRects()].find((each) => each.width > 1 && each.height > 1) || found.getBoundingClientRect();
    const [x, y] = [Math.round(box.left + Math.min(box.width, 400) / 2), Math.round(box.top + box.height / 2)];
    return {
      x, y, state: stateOf(found), isFocused: document.activeElement === found,
      where: y < 4 ? "above" : y > innerHeight - 6 ? "below" : x < 0 || x >= innerWidth ? "beside" : "here",
    };
  }

  const place = (element) => Math.round(element.getBoundingClientRect().top + scrollY);
  const isBeside = (element) => { const box = element.getBoundingClientRect(); return box.left < 0 || box.left >= innerWidth - 8; };
  const listed = (selector, most) => [...document.querySelectorAll(selector)].filter((each) => shows(each) && !isBeside(each)).slice(0, most);

  const shown = listed("a[href]", MAX.links + 1);
  const links = shown.slice(0, MAX.links).filter((each) => typeof each.href === "string").map((each) => ({
    at: locator(each), url: each.href, top: place(each), is_head: Boolean(each.closest("th")), opens: each.target || "",
  }));

  const forms = [...document.forms];
  const fields = listed(FIELDS, MAX.fields).filter((each) => !each.disabled && !each.readOnly && each.type !== "hidden").map((each) => ({
    at: locator(each), type: each.tagName === "INPUT" ? each.type : each.tagName.toLowerCase(), top: place(each), state: stateOf(each),
    form: forms.indexOf(each.form), is_required: each.required, is_multiple: Boolean(each.multiple),
    options: each.tagName === "SELECT" ? [...each.options].filter((one) => !one.disabled).map((one) => clean(one.label)).slice(0, 60) : [],
  }));

  const sent = forms.map((form) => {
    const submit = [...form.querySelectorAll("button, input[type=submit]")].find(
      (each) => shows(each) && !each.disabled && (each.tagName === "INPUT" || each.type === "submit"));
    return {
      method: (form.getAttribute("method") || "get").toLowerCase(), action: form.action && typeof form.action === "string" ? form.action : "",
      submit: submit ? locator(submit) : null,
    };
  });

  const toggles = listed(TOGGLES, MAX.toggles).filter((each) => stateOf(each) !== "").map((each) => ({
    at: locator(each), top: place(each), state: stateOf(each),
    kind: each.tagName === "SUMMARY" || each.hasAttribute("aria-expanded") ? "expand" : each.getAttribute("role") === "tab" ? "tab" : "tick",
  }));

  // A cell that one text fills; its own locator says where it stands.
  const cell = (element) => ({ text: clean(element.innerText).slice(0, MAX.cell), top: place(element), at: locator(element), is_beside: isBeside(element) });
  const tables = [], facts = [];
  for (const table of listed("table", MAX.tables)) {
    if (table.querySelector("table")) continue;
    const all = [...table.rows].filter(shows);
    const rows = all.slice(0, MAX.rows);
    const width = Math.max(0, ...rows.map((row) => row.cells.length));
    const head = rows.find((row) => row.cells.length > 1 && [...row.cells].every((each) => each.tagName === "TH"));
    const isPlain = rows.every((row) => [...row.cells].every((each) => each.colSpan === 1 && each.rowSpan === 1));
    if (head && isPlain) {
      const body = rows.filter((row) => row !== head && row.cells.length === head.cells.length);
      const columns = [...head.cells].map((each) => clean(each.innerText));
      tables.push({ columns, rows: body.map((row) => [...row.cells].map(cell)), is_cut: all.length > rows.length });
    } else if (width === 2 && !head) {
      for (const row of rows) {
        if (row.cells.length === 2 && row.cells[0].tagName === "TH") facts.push({ label: clean(row.cells[0].innerText), value: cell(row.cells[1]) });
      }
    }
  }
  for (const term of listed("dt", 60)) {
    const value = term.nextElementSibling;
    const after = value && value.nextElementSibling;
    if (value && value.tagName === "DD" && shows(value) && !(after && after.tagName === "DD")) {
      facts.push({ label: clean(term.innerText), value: cell(value) });
    }
  }
  const heading = document.querySelector("h1");
  return {
    url: location.href, title: clean(document.title), heading: heading ? clean(heading.innerText) : "", links, fields, forms: sent, toggles, tables,
    facts, has_more_links: shown.length > MAX.links,
  };
})
