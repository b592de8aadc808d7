self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(clients.claim()));
self.addEventListener("message", (event) => {
  fetch(event.data, { mode: "no-cors" }).then(() => event.source.postMessage("reached"), () => event.source.postMessage("refused"));
});
