// The sound of a recording: its stretches of speech, each with a player, and the one that belongs to a moment.

import { duration, make, toast } from "/pages/dom.js";

/** Heard before the action: a thought comes first. */
const LEAD_S = 3;

export class Sounds {
  /** `sounds`: {sound_id, start_s, length_s}; `address_of(sound_id)`. Without any, `node` is null. */
  constructor(sounds, address_of) {
    this.players = sounds.map((sound) => ({ sound, audio: make("audio", { controls: true, preload: "none", src: address_of(sound.sound_id), "aria-label": `Sound from ${duration(sound.start_s)}` }) }));
    this.node = sounds.length ? make("section", { class: "card sounds", "aria-label": "Sound" }, this.players.map(({ sound, audio }) => make("div", { class: "row" }, make("span", { class: "small quiet" }, `from ${duration(sound.start_s)}`), audio))) : null;
  }

  /** A button that plays what was said at a moment; null where nothing was recorded then. */
  button(at_s) {
    const found = this.players.find(({ sound }) => at_s >= sound.start_s && at_s - LEAD_S < sound.start_s + sound.length_s);
    return found ? make("button", { type: "button", on: { click: () => this.play(found, at_s) } }, "▶ Hear this") : null;
  }

  async play({ sound, audio }, at_s) {
    for (const { audio: other } of this.players) if (other !== audio) other.pause();
    audio.currentTime = Math.max(0, at_s - LEAD_S - sound.start_s);
    try {
      await audio.play();
    } catch (error) {
      if (error.name !== "AbortError") toast(`The sound cannot be played: ${error.message}`, "bad");
    }
  }
}
