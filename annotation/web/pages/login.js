// The login. Where to go afterwards is taken from the address only when it is a page of this server.

import { post } from "/pages/api.js";
import { at, show } from "/pages/dom.js";

function next_page() {
  const wanted = new URLSearchParams(location.search).get("next") ?? "/";
  const target = new URL(wanted, location.origin);
  return wanted.startsWith("/") && target.origin === location.origin ? target.pathname + target.search : "/";
}

at("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = at("login").querySelector("button");
  button.disabled = true;
  try {
    await post("/login", { name: at("name").value.trim(), password: at("password").value });
    location.assign(next_page());
  } catch (error) {
    button.disabled = false;
    at("said").hidden = false;
    show(at("said"), error.message);
    at("password").select();
  }
});

at("login").querySelector("button").disabled = false;
