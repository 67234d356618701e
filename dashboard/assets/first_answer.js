// Takes the first answer (dashboard/web/first_answer.py) away once the page says the same by itself.
(() => {
  const LONGEST_MS = 15000; // whatever went wrong by then, the page says it
  const first = document.getElementById("first-answer");
  const app = document.getElementById("react-entry-point");
  if (!first || !app) {
    return;
  }
  const observer = new MutationObserver(() => {
    if (app.querySelector(first.dataset.until)) {
      leave();
    }
  });
  const timer = setTimeout(leave, LONGEST_MS);

  function leave() {
    observer.disconnect();
    clearTimeout(timer);
    first.remove();
  }

  observer.observe(app, { childList: true, subtree: true });
})();
