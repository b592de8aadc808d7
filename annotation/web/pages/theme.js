// Sets the chosen theme before anything is painted; a classic script in the head, so that no page flashes in the other one.
"use strict";

try {
  const theme = localStorage.getItem("flywheel.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // No storage: the system's preference holds.
}
