// What an oracle sees of a page: where it may click next. One expression, a function; knows no application.
//
//   ({ paths, names, submit, texts }) => { path, link, form, line }
//
// link     the nearest of `paths` that something on the page leads to: { index, x, y, where }
// form     the form that has controls of all `names` and a button `submit`: { controls: { name: [{ ... }] }, submit: { x, y, where } }
// line     the line of a table in which all `texts` stand: { x, y, where }
// where    here | above | below | covered: whether a click at x, y hits it now
(({ paths, names, submit, texts }) => {
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const boxes = (element) => [...element.getClientRects()].filter((rect) => rect.width > 0 && rect.height > 0);
  // What is folded away has no box: the handle that unfolds it stands beside the outermost of its surroundings that has none.
  const handle = (element) => {
    let folded = element;
    while (folded.parentElement && !boxes(folded.parentElement).length) folded = folded.parentElement;
    const beside = folded.parentElement ? [...folded.parentElement.querySelectorAll("a, summary, button")] : [];
    return beside.find((each) => boxes(each).length && each.compareDocumentPosition(folded) & Node.DOCUMENT_POSITION_FOLLOWING);
  };
  const place = (element) => {
    const rects = boxes(element);
    if (!rects.length) {
      const unfolds = handle(element);
      return unfolds ? { ...place(unfolds), isFolded: true } : { x: 0, y: 0, where: "covered" };
    }
    const rect = rects[0];
    const x = Math.round(rect.left + Math.min(rect.width / 2, 60)), y = Math.round(rect.top + Math.min(rect.height / 2, 12));
    if (y < 2) return { x, y, where: "above" };
    if (y > innerHeight - 6) return { x, y, where: "below" };
    const hit = document.elementFromPoint(x, y);
    return { x, y, where: hit && (hit === element || element.contains(hit) || hit.contains(element)) ? "here" : "covered" };
  };
  const pathOf = (address) => {
    try {
      const url = new URL(address, location.href);
      return url.origin === location.origin ? decodeURIComponent(url.pathname + url.search) : "";
    } catch { return ""; }
  };
  const targetOf = (form) => {
    const query = new URLSearchParams([...new FormData(form)]).toString();
    return pathOf(form.getAttribute("action").split("?")[0] + (query ? "?" + query : ""));
  };
  const plain = (form) => form.method === "get" && [...form.elements].every((each) => each.type === "hidden" || each.type === "submit");

  let link = null;
  const wanted = paths.map(decodeURIComponent);
  const leads = [...document.links].map((each) => [pathOf(each.href), each]);
  for (const form of document.forms) {
    const button = form.querySelector("[type=submit]");
    if (button && form.hasAttribute("action") && plain(form)) leads.push([targetOf(form), button]);
  }
  for (let index = 0; index < wanted.length && !link; index += 1) {
    for (const [path, element] of leads) {
      if (path !== wanted[index]) continue;
      const found = place(element);
      if (found.where !== "covered" && (!link || (link.where !== "here" && found.where === "here"))) link = { index, ...found };
    }
  }

  let form = null;
  for (const candidate of names.length || submit ? document.forms : []) {
    const all = [...candidate.elements];
    const button = all.find((each) => each.type === "submit" && clean(each.value || each.textContent) === submit)
      || all.find((each) => each.type === "submit" && clean(each.textContent) === submit);
    if (!button || !names.every((name) => all.some((each) => each.name === name))) continue;
    const controls = {};
    for (const name of names) {
      controls[name] = all.filter((each) => each.name === name).map((each) => ({
        ...place(each), type: each.type, value: each.value, isChecked: Boolean(each.checked), isDisabled: each.disabled,
        isFocused: document.activeElement === each, chosen: each.selectedOptions ? clean(each.selectedOptions[0]?.textContent) : "",
      }));
    }
    form = { controls, submit: place(button) };
    break;
  }
  const holds = (row) => {
    const cells = [...row.cells].map((cell) => clean(cell.textContent));
    return texts.every((text) => cells.includes(text));
  };
  const row = texts.length ? [...document.querySelectorAll("tr")].find(holds) : null;
  return { path: decodeURIComponent(location.pathname + location.search), link, form, line: row ? place(row) : null };
})
