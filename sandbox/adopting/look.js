// What can be done and read on a page, and where a thing that was found before stands now. The file is one expression, a function:
//
//   ({find})   with a locator: where that is, or null
//   ({shown})  with a view, {kind, name}: whether it shows
//   ({})       links, fields, toggles, buttons, tables, facts and views of the page, each with its locator
//
// A locator is {tag, name, key, nth}: `name` is what a person calls it, `key` what tells it from others of that name (an address, the name
// of a field), `nth` which of several that are alike. Only what shows is found.
((asked) => {
  "use strict";
  const MAX = { links: 250, fields: 40, toggles: 60, buttons: 60, rows: 40, tables: 8, cell: 200, views: 80, view: 80 };
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const FIELDS = "input, textarea, select";
  const PRESSED = ["submit", "button", "reset", "image", "hidden"];  // no fields, though inputs: a "Search" beside the field "Search"
  const TOGGLES = "summary, [aria-expanded], [role=tab], [role=switch], [role=checkbox]";
  // what a script answers: no address and no form says what a click does
  const BUTTONS = "button, input[type=button], [role=button], [role=menuitem], a:not([href]), a[href^='#'], a[href^='javascript:']";
  const DIALOGS = "dialog[open], [role=dialog], [role=alertdialog], [aria-modal=true]";
  const HEADINGS = "h1, h2, h3, [role=heading]";

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

  // Parts of a page that a click may bring up: dialogs by their label or first heading, menus by their items, and headings.
  function views() {
    const found = [];
    const add = (kind, text) => { const name = clean(text).slice(0, MAX.view); if (name) found.push({ kind, name }); };
    for (const each of [...document.querySelectorAll(DIALOGS)].filter(shows)) {
      const heading = [...each.querySelectorAll(HEADINGS + ", legend, h4, h5")].find(shows);
      add("dialog", said(each) || (heading && heading.innerText) || clean(each.innerText));
    }
    for (const each of [...document.querySelectorAll("[role=menu], [role=listbox]")].filter(shows)) add("menu", said(each) || clean(each.innerText));
    for (const each of [...document.querySelectorAll(HEADINGS)].filter(shows)) add("heading", each.innerText);
    return found.slice(0, MAX.views);
  }

  if (asked.shown) return views().some((view) => view.kind === asked.shown.kind && view.name === asked.shown.name);

  // A <div> that is a button is looked for among those alone: a page has thousands of others.
  const tagOf = (element) => {
    const role = element.getAttribute("role") || "";
    return element.tagName.toLowerCase() + (/^[a-z]+$/.test(role) ? `[role=${role}]` : "");
  };

  const groups = new Map();
  const idOf = (element) => JSON.stringify([keyOf(element), nameOf(element)]);

  // Each tag's elements are grouped once: a page may have thousands of cells.
  function alike(element) {
    const tag = tagOf(element);
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
    tag: tagOf(element), name: nameOf(element), key: keyOf(element), nth: Math.max(0, alike(element).indexOf(element)),
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
  // From where to where a part of the page shows what is in it: a limit where it scrolls sideways.
  const everywhere = [-Infinity, Infinity], shownIn = new Map([[null, everywhere], [document.body, everywhere]]);
  function widthOf(part) {
    if (!shownIn.has(part)) {
      const style = getComputedStyle(part);
      const [left, right] = style.position === "fixed" ? everywhere : widthOf(part.parentElement);
      const box = style.overflowX === "visible" || style.display === "inline" ? null : part.getBoundingClientRect();
      shownIn.set(part, box && box.width > 1 ? [Math.max(left, box.left), Math.min(right, box.right)] : [left, right]);
    }
    return shownIn.get(part);
  }
  function isBeside(element) {
    const box = element.getBoundingClientRect();
    const [left, right] = widthOf(element.parentElement), middle = box.left + Math.min(box.width, 400) / 2;
    return box.left < 0 || box.left >= innerWidth - 8 || middle < left || middle > right;
  }
  const listed = (selector, most) => [...document.querySelectorAll(selector)].filter((each) => shows(each) && !isBeside(each)).slice(0, most);

  // Something else lies over it, such as a dialog that the page opened by itself: a click would not reach it.
  function isCovered(element) {
    const box = [...element.getClientRects()].find((each) => each.width > 1 && each.height > 1) || element.getBoundingClientRect();
    const hit = document.elementFromPoint(box.left + Math.min(box.width, 400) / 2, box.top + box.height / 2);
    return hit !== null && !element.contains(hit) && !hit.contains(element) && !hit.closest("label")?.contains(element)
      && ![...(element.labels || [])].some((label) => label.contains(hit));
  }
  const usable = (selector, most) => listed(selector, most).filter((each) => !isCovered(each));

  const isHead = (row) => row.cells.length > 1 && ([...row.cells].every((each) => each.tagName === "TH") || row.parentElement.tagName === "THEAD");

  // What a person would call the place of a link whose name others have, too: its row, or a part of the page with a name.
  function groupOf(element) {
    const row = element.closest("tr");
    const first = row && row.cells.length > 1 && !isHead(row) && ([...row.cells].find((each) => each.tagName === "TH") || row.cells[0]);
    if (first && !first.contains(element) && clean(first.innerText)) return { group: clean(first.innerText), is_in_row: true };
    for (let part = element.parentElement; part && part !== document.body; part = part.parentElement) {
      const own = part.tagName === "DETAILS" ? part.querySelector("summary") : part.tagName === "FIELDSET" ? part.querySelector("legend") : null;
      const before = ["UL", "OL", "DL"].includes(part.tagName) && part.previousElementSibling;
      const name = own && !own.contains(element) ? own.innerText : said(part) || (before && before.matches("h1, h2, h3, h4, h5, h6") ? before.innerText : "");
      if (clean(name)) return { group: clean(name).slice(0, 60), is_in_row: false };
    }
    return {};
  }

  const shown = listed("a[href]", MAX.links + 1);
  const links = shown.slice(0, MAX.links).filter((each) => typeof each.href === "string" && !isCovered(each)).map((each) => ({
    at: locator(each), url: each.href, top: place(each), opens: each.target || "",
    is_head: Boolean(each.closest("th") && each.closest("tr") && isHead(each.closest("tr"))), ...groupOf(each),
  }));

  const forms = [...document.forms];
  const optionsOf = (each) => each.tagName === "SELECT" ? [...each.options].filter((one) => !one.disabled).slice(0, 60) : [];
  const fields = usable(FIELDS, MAX.fields).filter((each) => !each.disabled && !each.readOnly && !PRESSED.includes(each.type)).map((each) => ({
    at: locator(each), type: each.tagName === "INPUT" ? each.type : each.tagName.toLowerCase(), top: place(each), state: stateOf(each),
    form: forms.indexOf(each.form), is_sent: Boolean(each.name), is_required: each.required, is_multiple: Boolean(each.multiple), max_length: Math.max(0, each.maxLength || 0),
    options: optionsOf(each).map((one) => clean(one.label)), values: optionsOf(each).map((one) => one.value),
  }));

  // A field named "action" hides the form's own property.
  const actionOf = (form) => { try { return new URL(form.getAttribute("action") || location.href, document.baseURI).href; } catch { return ""; } };
  const sent = forms.map((form) => {
    const submits = [...form.querySelectorAll("button, input[type=submit]")].filter(
      (each) => shows(each) && !each.disabled && (each.tagName === "INPUT" || each.type === "submit"));
    return {
      method: (form.getAttribute("method") || "get").toLowerCase(), action: actionOf(form),
      submit: submits.length ? locator(submits[0]) : null,
      hides_required: [...form.elements].some((each) => each.required && !each.disabled && each.type !== "hidden" && !shows(each) && !stateOf(each)),
      submits: submits.map((each) => ({
        at: locator(each), key: each.name, value: each.value, action: each.hasAttribute("formaction") ? each.formAction : "",
      })),
    };
  });

  const toggles = usable(TOGGLES, MAX.toggles).filter((each) => stateOf(each) !== "").map((each) => ({
    at: locator(each), top: place(each), state: stateOf(each),
    kind: each.tagName === "SUMMARY" || each.hasAttribute("aria-expanded") ? "expand" : each.getAttribute("role") === "tab" ? "tab" : "tick",
  }));

  const isPlace = (element) => { const to = element.getAttribute("href") || ""; return to.length > 1 && to[0] === "#" && document.getElementById(to.slice(1)); };
  const isSubmit = (element) => element.form && (element.type === "submit" || element.type === "reset" || element.type === "image");
  const isBusy = (element) => element.disabled || element.getAttribute("aria-disabled") === "true";
  const buttons = usable(BUTTONS, MAX.buttons).filter((each) => !each.matches(TOGGLES) && !isSubmit(each) && !isBusy(each) && !isPlace(each)).map((each) => ({
    at: locator(each), top: place(each),
  }));

  // A cell that one text fills; its own locator says where it stands.
  const cell = (element) => ({ text: clean(element.innerText).slice(0, MAX.cell), top: place(element), at: locator(element), is_beside: isBeside(element) });
  const tables = [], facts = [];
  // Without what shows how the list is sorted: a mark, or links beside the one with the name.
  function columnName(element) {
    const named = [...element.querySelectorAll("a")].filter((each) => clean(each.innerText));
    const text = clean(named.length === 1 ? named[0].innerText : element.innerText);
    return text.replace(/\s*[\u2190-\u21ff\u25a0-\u25ff\u2b00-\u2bff]+$/, "") || text;
  }
  for (const table of listed("table", MAX.tables)) {
    if (table.querySelector("table")) continue;
    const all = [...table.rows].filter(shows);
    const rows = all.slice(0, MAX.rows);
    const isPlain = (row) => [...row.cells].every((each) => each.colSpan === 1);
    const head = rows.find((row) => isHead(row) && isPlain(row));
    if (rows.some((row) => [...row.cells].some((each) => each.rowSpan > 1))) continue;
    if (head) {  // a row with a cell over several columns, such as a sum or a group's name, is not one of the list
      const body = rows.filter((row) => row !== head && !isHead(row) && row.cells.length === head.cells.length && isPlain(row));
      const columns = [...head.cells].map(columnName);
      tables.push({ columns, rows: body.map((row) => [...row.cells].map(cell)), is_cut: all.length > rows.length });
    } else if (!table.closest("nav, [role=navigation]")) {  // labels beside their values: one pair in a row, or several
      for (const row of rows) {
        const cells = [...row.cells];
        if (cells.length % 2 || !cells.every((each, number) => each.tagName === (number % 2 ? "TD" : "TH"))) continue;
        for (let number = 0; number < cells.length; number += 2) {
          facts.push({ label: clean(cells[number].innerText), value: cell(cells[number + 1]) });
        }
      }
    }
  }
  // Tables that scripts draw without the element, by their roles.
  for (const table of listed("[role=table]:not(table), [role=grid]:not(table)", MAX.tables)) {
    const all = [...table.querySelectorAll("[role=row]")].filter(shows);
    const rows = all.slice(0, MAX.rows);
    const cellsOf = (row, roles) => [...row.querySelectorAll(roles)].filter(shows);
    const head = rows.find((row) => cellsOf(row, "[role=columnheader]").length > 1);
    if (!head) continue;
    const columns = cellsOf(head, "[role=columnheader]").map((each) => clean(each.innerText));
    const body = rows.filter((row) => row !== head).map((row) => cellsOf(row, "[role=cell], [role=gridcell], [role=rowheader]"));
    const isCut = all.length > rows.length || Number(table.getAttribute("aria-rowcount")) > all.length || Number(table.getAttribute("aria-rowcount")) === -1;
    tables.push({ columns, rows: body.filter((cells) => cells.length === columns.length).map((cells) => cells.map(cell)), is_cut: isCut });
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
    url: location.href, title: clean(document.title), heading: heading ? clean(heading.innerText) : "", links, fields, forms: sent, toggles, buttons,
    tables, facts, views: views(), has_more_links: shown.length > MAX.links,
  };
})
