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

  // Sections that a reader opened or closed stay so, on this machine.
  const FOLDS = "lagloss-folds";

  function foldsOf() {
    try {
      return JSON.parse(localStorage.getItem(FOLDS)) || {};
    } catch {
      return {}; // storage is blocked or holds something else: the page's own choice counts
    }
  }

  document.addEventListener(
    "toggle",
    ({ target }) => {
      const key = target.dataset?.fold;
      if (key && (foldsOf()[key] ?? false) !== target.open) {
        try {
          localStorage.setItem(FOLDS, JSON.stringify({ ...foldsOf(), [key]: target.open }));
        } catch {
          // remembered until the page is left
        }
      }
      if (key && target.open) {
        window.dispatchEvent(new Event("resize")); // charts had no width while they were folded
      }
    },
    true, // it does not bubble
  );

  document.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("button.copy");
    if (button) {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
    }
  });

  new MutationObserver((changes) => {
    const added = changes.flatMap((change) => [...change.addedNodes]).filter((node) => node.nodeType === Node.ELEMENT_NODE);
    const folds = added.flatMap((node) => [...(node.matches("details[data-fold]") ? [node] : []), ...node.querySelectorAll("details[data-fold]")]);
    for (const fold of folds) {
      fold.open = foldsOf()[fold.dataset.fold] ?? fold.open;
    }
  }).observe(document.documentElement, { childList: true, subtree: true });

  const HOP = /^(arrival|queue|process)-/; // the uid of a hop's trace (lagloss_server/model/hops.py)
  const FADED = 0.12;

  // plotly tells of both halves of a double click as clicks, a busy browser of the second one seconds later
  const DOUBLE_CLICK_MS = 350;
  let isDoubled = false;
  document.addEventListener(
    "mousedown",
    (event) => {
      isDoubled = event.detail > 1;
    },
    true,
  );

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

      /** A click on a chart, once it is known that it is no half of a double click. */
      singleClick(click) {
        const { no_update } = window.dash_clientside;
        return new Promise((resolve) => {
          setTimeout(() => resolve(click && !isDoubled ? click : no_update), DOUBLE_CLICK_MS);
        });
      },

      /** The hop under the mouse in the graph of the flow: the stack of lags fades all others. */
      showHop(hover, panelsId) {
        const hop = hover?.points?.[0]?.customdata;
        const chart = document.querySelector(`#${panelsId} .js-plotly-plot`);
        const hops = (chart?.data ?? []).flatMap((trace, at) => (HOP.test(trace.uid ?? "") ? [at] : []));
        if (hops.length > 0) {
          const opacity = hops.map((at) => (!hop || chart.data[at].uid === hop ? 1 : FADED));
          window.Plotly.restyle(chart, { opacity }, hops);
        }
        return window.dash_clientside.no_update;
      },

      /** Sets a store to true once a reader comes within half a screen of a chart that has its height. */
      awaitSight(style, chartId, storeId, isSeen) {
        const { no_update, set_props } = window.dash_clientside;
        const chart = document.getElementById(chartId);
        if (style?.height && !isSeen && !chart.dataset.awaited) {
          chart.dataset.awaited = "yes";
          const seen = ([entry], observer) => {
            if (entry.isIntersecting) {
              observer.disconnect();
              set_props(storeId, { data: true });
            }
          };
          new IntersectionObserver(seen, { rootMargin: "50%" }).observe(chart);
        }
        return no_update;
      },
    },
  });
})();
