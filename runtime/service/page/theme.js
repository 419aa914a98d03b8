// Dark or light: as the system says, until the reader chooses.

const KEY = "sluice-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

const chosen = () => (localStorage.getItem(KEY) in NEXT ? localStorage.getItem(KEY) : "system");

export function applyTheme() {
  const theme = chosen();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
}

export function switchTheme() {
  localStorage.setItem(KEY, NEXT[chosen()]);
  applyTheme();
}
