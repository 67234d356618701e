// Charts are drawn by plotly.js's basic bundle, a quarter of the whole one that Dash would load: bars, lines and pies
// are all there are. Loaded by Dash from this folder, before the first page is drawn.
(() => {
  const bundle = new URL("vendor/plotly-basic.min.js", document.currentScript.src).href;
  const hasCharts = /^\/pipelines\/[^/]+(\/report)?$/.test(window.location.pathname);

  // Dash writes here where its own bundle is, and reads it when the first chart is mounted.
  Object.defineProperty(window, "_dashPlotlyJSURL", { get: () => bundle, set() {} });

  // It would be asked for only then; it can come while Dash starts, or, where a page has no charts, when all is quiet.
  // A fetch and no preload, of which browsers complain where it is used late.
  const warm = () => fetch(bundle).then((answer) => answer.arrayBuffer()).catch(() => {});
  if (hasCharts) {
    warm();
  } else {
    window.addEventListener("load", () => setTimeout(warm, 3_000));
  }
})();
