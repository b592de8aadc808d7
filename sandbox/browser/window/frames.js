// (extract) => the tools by which frames.py reads one frame. They live in our isolated world of the frame's document.
(extract) => {
  const cleared = new WeakSet(); // elements that were asked about; one made by the page's scripts may get a shadow tree later
  const roots = new Map(); // closed shadow trees by their hosts
  let suspected = [];

  // Elements that could hide a closed shadow tree: of the kinds that can have one, and nothing else of them shows.
  const KINDS = "article,aside,blockquote,div,footer,header,main,nav,p,section,span";
  function mayHide(element) {
    if (element.shadowRoot || cleared.has(element) || roots.has(element)) return false;
    const custom = element.localName.includes("-");
    if (!custom && (element.childNodes.length || !element.matches(KINDS))) return false;
    const box = element.getBoundingClientRect();
    return box.width >= 4 && box.height >= 4;
  }

  const place = (frame) => {
    const style = getComputedStyle(frame), box = frame.getBoundingClientRect();
    return [box.left + frame.clientLeft + parseFloat(style.paddingLeft), box.top + frame.clientTop + parseFloat(style.paddingTop)];
  };
  const numbered = (frame) => Array.from({ length: window.length }, (_, i) => i).find((i) => window[i] === frame.contentWindow);
  const isFrame = (node) => node instanceof HTMLIFrameElement || node instanceof HTMLFrameElement;

  return {
    // {found, suspects}: the elements, and how many might hide more; `limit` 0 asks for none of these
    read(options, limit, pairs = []) {
      for (let i = 0; i < pairs.length; i += 2) roots.set(pairs[i], pairs[i + 1]);
      const found = extract(options, [...roots]);
      if (limit) {
        suspected = [...document.querySelectorAll("*")].filter(mayHide).slice(0, limit);
      }
      return { found, suspects: limit ? suspected.length : 0 };
    },
    suspects() {
      for (const element of suspected) if (!element.localName.includes("-")) cleared.add(element);
      return suspected;
    },
    frameAt(x, y) {
      const hit = document.elementFromPoint(x, y);
      if (!isFrame(hit) || numbered(hit) === undefined) return null;
      const [left, top] = place(hit);
      return { frame: numbered(hit), x: left, y: top };
    },
    // for each point, whether it is that frame that shows there
    shows(number, points) {
      return points.map(([x, y]) => {
        const hit = document.elementFromPoint(x, y);
        return isFrame(hit) && numbered(hit) === number;
      });
    },
  };
}
