// Accepting an invitation: the token is behind the # of the address, so that no server's log ever holds it.

import { post } from "/pages/api.js";
import { at, show } from "/pages/dom.js";

const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);

function say(text) {
  at("said").hidden = false;
  show(at("said"), text);
}

function close(text) {
  say(text);
  for (const field of at("join").elements) field.disabled = true;
}

/** One's own account, with a new password: then there is no name to choose. */
async function look() {
  try {
    const invitation = await post("/invitation", { token });
    show(at("what"), invitation.name ? `A new password for ${invitation.name}.` : `You were invited as ${invitation.role}. Choose a name and a password.`);
    if (!invitation.name) return;
    at("name").value = invitation.name;
    at("name").readOnly = true;
    at("password").focus();
  } catch (error) {
    close(error.message);
  }
}

if (token) {
  at("join").querySelector("button").disabled = false;
  look();
} else {
  close("This address holds no invitation: open the link as it was sent, or ask for a new one.");
}

at("join").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (at("password").value !== at("again").value) {
    say("The two passwords differ.");
    at("again").select();
    return;
  }
  const button = at("join").querySelector("button");
  button.disabled = true;
  try {
    await post("/join", { token, name: at("name").value.trim(), password: at("password").value });
    location.assign("/");
  } catch (error) {
    button.disabled = false;
    say(error.message);
  }
});
