// What the page decides in the browser. Loaded by Dash from this folder.
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  lagloss: {
    /** Dark or light: what the reader chose last, else what the system says. */
    chooseScheme(clicks, stored) {
      const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      let scheme = stored || system;
      if (clicks && window.dash_clientside.callback_context.triggered.some((t) => t.prop_id.startsWith("scheme-toggle"))) {
        scheme = scheme === "dark" ? "light" : "dark";
      }
      document.body.dataset.agThemeMode = scheme;
      return [scheme, scheme];
    },

    /**
     * The new figure with the reader's zoom. `uirevision` alone no longer keeps it: since Dash 4.4 (plotly/dash #3882)
     * dcc.Graph writes a zoom back into its figure, and plotly.js then takes it for the app's own range.
     */
    keepZoom(next, shown) {
      const was = (shown || {}).layout || {};
      if (!next || !next.layout || was.uirevision !== next.layout.uirevision) {
        return next;
      }
      const layout = { ...next.layout };
      for (const axis of ["xaxis", "yaxis"]) {
        if (was[axis] && was[axis].autorange === false && was[axis].range) {
          layout[axis] = { ...layout[axis], range: was[axis].range.slice(), autorange: false };
        }
      }
      return { ...next, layout };
    },
  },
});
