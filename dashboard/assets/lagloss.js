// What the pages decide in the browser. Loaded by Dash from this folder, before the first page is drawn.
(() => {
  const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

  /** Puts the reader's zone into the address where it has none, so that a copied link shows others the same. */
  function nameZone() {
    const asked = new URLSearchParams(window.location.search);
    if (asked.get("zone")) {
      return false;
    }
    const rest = window.location.search.replace(/^\?/, "");
    const zone = `zone=${encodeURIComponent(OWN_ZONE).replaceAll("%2F", "/")}`;
    window.history.replaceState(null, "", `${window.location.pathname}?${rest ? `${rest}&` : ""}${zone}`);
    return true;
  }

  nameZone();

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    lagloss: {
      /** Dark or light: what the reader chose last, else what the system says. */
      chooseScheme(clicks, stored) {
        const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
        let scheme = stored || system;
        const byClick = window.dash_clientside.callback_context.triggered.some((one) =>
          one.prop_id.startsWith("scheme-toggle")
        );
        if (clicks && byClick) {
          scheme = scheme === "dark" ? "light" : "dark";
        }
        document.body.dataset.agThemeMode = scheme;
        return [scheme, scheme];
      },

      /** A page is there: its title is said, and its address names a zone. */
      arrive(title) {
        document.title = title ? `${title} · lagloss` : "lagloss";
        if (nameZone()) {
          window.dispatchEvent(new CustomEvent("_dashprivate_pushstate")); // dcc.Location reads the address again
        }
        return window.dash_clientside.no_update;
      },

      /**
       * The new figure with the reader's zoom. `uirevision` alone no longer keeps it: since Dash 4.4 (plotly/dash
       * #3882) dcc.Graph writes a zoom back into its figure, and plotly.js then takes it for the app's own range.
       */
      keepZoom(next, shown) {
        const was = (shown || {}).layout || {};
        if (!next || !next.layout || was.uirevision !== next.layout.uirevision) {
          return next;
        }
        const layout = { ...next.layout };
        for (const axis of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
          if (was[axis] && was[axis].autorange === false && was[axis].range) {
            layout[axis] = { ...layout[axis], range: was[axis].range.slice(), autorange: false };
          }
        }
        return { ...next, layout };
      },
    },
  });
})();
