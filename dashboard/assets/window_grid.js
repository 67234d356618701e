// Cells of grids. Looked up by name, so that no text from the server is ever run.
(() => {
  const KINDS = { "●": "there", "✖": "missing", "·": "absent" };

  window.dashAgGridComponentFunctions = Object.assign({}, window.dashAgGridComponentFunctions, {
    /** A cell of the matrix: its first sign says what it is. */
    LagCell(props) {
      const text = props.value || "";
      const kind = props.node.rowPinned ? "foot" : KINDS[text[0]] || "foot";
      return React.createElement("span", { className: `cell-${kind}` }, text);
    },

    /** The name of a message, which leads to its page. */
    MessageLink(props) {
      const href = props.data && props.data.href;
      return React.createElement(href ? "a" : "span", href ? { href, className: "message-link" } : {}, props.value);
    },

    /** The id of a message's trace, which leads to where traces are shown, if there is such a place. */
    TraceLink(props) {
      const href = props.data && props.data.traceHref;
      const attributes = { href, className: "message-link", target: "_blank", rel: "noopener noreferrer" };
      return React.createElement(href ? "a" : "span", href ? attributes : {}, props.value);
    },
  });
})();
