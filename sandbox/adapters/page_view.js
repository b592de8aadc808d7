// (selector, limit) => what of the document a verifier may look at: the elements that a CSS selector matches, or null for a bad selector.
(selector, limit) => {
  let found;
  try {
    found = document.querySelectorAll(selector);
  } catch {
    return null;
  }
  return [...found].slice(0, limit).map((element) => {
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    return {
      tag: element.localName,
      text: String(element.innerText ?? element.textContent ?? "").slice(0, 20000),
      value: "value" in element ? String(element.value).slice(0, 20000) : "",
      checked: element.checked === true || element.selected === true,
      attributes: Object.fromEntries([...element.attributes].slice(0, 100).map((each) => [each.name, each.value.slice(0, 5000)])),
      shown: box.width > 0 && box.height > 0 && style.visibility !== "hidden" && style.display !== "none",
      x: box.left + box.width / 2,
      y: box.top + box.height / 2,
    };
  });
}
