// Ranks the pages of INDEX (index.js) for the address's `q`, and shows the first screen. The rule is sandbox/tasks/browsing/search.py's.
const FIRST_SCREEN = 8;
const TITLE_WEIGHT = 3;

function wordsOf(text) {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().match(/[a-z0-9]+/g) || [];
}

function resultsOf(query) {
  const scores = new Map();
  for (const word of new Set(wordsOf(query))) {
    if (!Object.hasOwn(INDEX.words, word)) continue;
    const [rarity, inTitle, inBody] = INDEX.words[word];
    for (const [places, weight] of [[inTitle, TITLE_WEIGHT], [inBody, 1]]) {
      for (const place of places) scores.set(place, (scores.get(place) || 0) + rarity * weight);
    }
  }
  return [...scores.keys()]
    .filter((place) => scores.get(place) > 0)
    .sort((a, b) => scores.get(b) - scores.get(a) || a - b)
    .slice(0, FIRST_SCREEN)
    .map((place) => INDEX.pages[place]);
}

const query = new URLSearchParams(location.search).get("q") || "";
const results = document.getElementById("results");
document.querySelector("input").value = query;
for (const [title, kind, path] of resultsOf(query)) {
  const line = document.createElement("p");
  const link = document.createElement("a");
  link.href = path;
  link.textContent = title;
  const about = document.createElement("span");
  about.textContent = kind;
  line.append(link, about);
  results.append(line);
}
if (!results.childElementCount) results.textContent = "No page has these words.";
