// Runs Dash's scripts once the first answer has been drawn: else a browser runs them first, for half a second.
(() => {
  const scripts = [...document.getElementById("dash-scripts").content.querySelectorAll("script")];
  const loaded = scripts.filter((script) => script.hasAttribute("src"));
  const inline = scripts.filter((script) => !script.hasAttribute("src"));

  function preload(script) {
    const link = document.createElement("link");
    Object.assign(link, { rel: "preload", as: "script", href: script.getAttribute("src") });
    document.head.append(link);
  }

  function run(script) {
    const copy = document.createElement("script"); // what was parsed in a template never runs
    for (const { name, value } of script.attributes) {
      copy.setAttribute(name, value);
    }
    copy.text = script.text;
    copy.async = false; // in their order
    document.body.append(copy);
    return copy;
  }

  function start() {
    loaded.map(run).at(-1).addEventListener("load", () => inline.forEach(run));
  }

  loaded.forEach(preload);
  if (document.hidden) {
    start(); // no frame is drawn there
  } else {
    requestAnimationFrame(() => setTimeout(start));
  }
})();
