// @ts-check
// Light or dark, as chosen by the reader, else by the system. It runs before anything is
// drawn, so it is not a module. The button that switches sends the event `traceprof:switch-theme`;
// code that draws with the theme's colours listens to `traceprof:redraw`.
(() => {
  const KEY = "traceprof-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // the browser blocks storage for this site
    }
  };
  const apply = (/** @type {string} */ theme) => {
    root.dataset.theme = theme;
    root.dataset.agThemeMode = theme;
    window.dispatchEvent(new Event("traceprof:redraw"));
  };
  const applyStored = () => apply(stored() ?? (system.matches ? "dark" : "light"));

  window.addEventListener("traceprof:switch-theme", () => {
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // It holds until the page is left.
    }
    apply(next);
  });
  system.addEventListener("change", applyStored);
  applyStored();
})();
