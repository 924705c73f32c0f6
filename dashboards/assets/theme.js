// Light or dark: what the reader chose, else what the system says. Before anything is drawn.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("traceprof-theme");
    } catch {
      return null; // the browser keeps nothing for this site
    }
  };
  const apply = () => {
    const theme = chosen() ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    document.documentElement.dataset.agThemeMode = theme;
    window.dispatchEvent(new CustomEvent("traceprof:theme", { detail: theme }));
  };
  window.traceprofTheme = {
    toggle() {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("traceprof-theme", next);
      } catch {
        // It holds until the page is left.
      }
      document.documentElement.dataset.theme = next;
      document.documentElement.dataset.agThemeMode = next;
      window.dispatchEvent(new CustomEvent("traceprof:theme", { detail: next }));
    },
  };
  system.addEventListener("change", apply);
  apply();
})();
