// Builds what dashboard/pages/printing.py makes of components: nested lists become elements, texts become text.
(() => {
  /** One element of `[tag, attributes, child, ...]`, or the text itself. */
  function build(node) {
    if (typeof node === "string") {
      return document.createTextNode(node);
    }
    const [tag, attributes, ...children] = node;
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      made.setAttribute(name, value);
    }
    made.append(...children.map(build));
    made.lightSource = JSON.stringify(node);
    return made;
  }

  /** Whether an element can stay where its children are brought up to date: the same tag, attributes and depth. */
  function alike(place, node) {
    if (!place || !place.lightSource || typeof node === "string") {
      return false;
    }
    const was = JSON.parse(place.lightSource);
    return was[0] === node[0] && JSON.stringify(was[1]) === JSON.stringify(node[1]);
  }

  const keyOf = (node) => (typeof node === "string" ? undefined : node[1]["data-key"]);

  /** Makes the children of `place` those of `node`. What did not change stays as it is, with focus and selection;
   *  children with a data-key are found again by it wherever they stood. */
  function update(place, nodes) {
    const before = [...place.childNodes];
    const byKey = new Map(before.filter((child) => child.dataset?.key).map((child) => [child.dataset.key, child]));
    nodes.forEach((node, at) => {
      const key = keyOf(node);
      const old = key === undefined ? before[at] : byKey.get(key);
      const wanted = keep(old, node);
      if (place.childNodes[at] !== wanted) {
        place.insertBefore(wanted, place.childNodes[at] || null);
      }
    });
    while (place.childNodes.length > nodes.length) {
      place.lastChild.remove();
    }
  }

  /** The old element where it says the same, or can be made to; else a new one. */
  function keep(old, node) {
    if (typeof node === "string") {
      return old && old.nodeType === Node.TEXT_NODE && old.data === node ? old : build(node);
    }
    if (!alike(old, node)) {
      return build(node);
    }
    const source = JSON.stringify(node);
    if (old.lightSource !== source) {
      update(old, node.slice(2));
      old.lightSource = source;
    }
    return old;
  }

  /** Links to pages of ours lead there without a load; with a modifier key the browser does what it always does. */
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-inside]");
    if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) {
      return;
    }
    event.preventDefault();
    window.history.pushState({}, "", link.getAttribute("href"));
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    light: {
      /** `drawn.tree` (or nothing) becomes the content of the element with the id `drawn.into`. */
      draw(drawn) {
        const place = drawn && document.getElementById(drawn.into);
        if (place) {
          const focused = document.activeElement;
          update(place, drawn.tree ? [drawn.tree] : []);
          if (focused && focused !== document.activeElement && place.contains(focused)) {
            focused.focus({ preventScroll: true }); // it lost the focus when its row was moved
          }
        }
      },
    },
  });
})();
