// Tells when a page has gone stale: refreshes that are asked for, and not answered. Loaded by Dash from this folder.
(() => {
  const CALLBACK = "_dash-update-component";
  const CLOCK = "tick.n_intervals";
  const BY_READER = "by reader"; // whatever is answered shows that the server is there again
  const PATIENCE = 3; // refreshes
  const LOOK_MS = 1_000;
  const HANGS_MS = 60_000; // longer than any read takes: the server has lost this one

  let refreshMs = 5_000;
  let path = window.location.pathname;
  let answeredAt = null; // the newest answer, until it is drawn
  let readAt = null; // when what is shown was read
  const waiting = new Map(); // by callback: {since, status} of those whose last good answer is older than a request

  const plainFetch = window.fetch.bind(window);
  window.fetch = (resource, options) =>
    typeof resource === "string" && resource.includes(CALLBACK)
      ? watched(resource, options)
      : plainFetch(resource, options);

  /** The answer to a callback. One that does not come is a 503: Dash's own way of failing would leave the clock of
   *  refreshes switched off for good (`running` in the callbacks). */
  async function watched(resource, options) {
    const asked = JSON.parse(options.body);
    const isByClock = (asked.changedPropIds || []).includes(CLOCK);
    const key = isByClock ? asked.output : BY_READER;
    const wait = waiting.get(key) || { since: Date.now(), status: 0 };
    waiting.set(key, wait);
    try {
      const limit = isByClock ? { signal: AbortSignal.timeout(HANGS_MS) } : {};
      const answer = await plainFetch(resource, { ...options, ...limit });
      const body = answer.status === 204 ? null : await answer.arrayBuffer();
      wait.status = answer.status;
      if (answer.ok) {
        waiting.delete(key);
        waiting.delete(BY_READER);
        answeredAt = answer.status === 200 ? Date.now() : answeredAt;
      }
      return new Response(body, { status: answer.status, statusText: answer.statusText, headers: answer.headers });
    } catch {
      wait.status = 0;
      return new Response(null, { status: 503 });
    }
  }

  function ago(ms) {
    const seconds = ms / 1_000;
    if (seconds < 60) {
      return `${Math.round(seconds)} s ago`;
    }
    return seconds < 3_600 ? `${(seconds / 60).toFixed(1)} min ago` : `${(seconds / 3_600).toFixed(1)} h ago`;
  }

  function why(status) {
    if (status === 401 || status === 403) {
      return "You are logged out: reload this page.";
    }
    const told = status ? `The server returns an error (${status})` : "The server does not respond";
    return `${told}; retrying automatically.`;
  }

  const banner = document.createElement("div");
  banner.className = "stale-banner";
  banner.setAttribute("role", "status");
  banner.hidden = true;
  const reason = document.createElement("span");
  const age = document.createElement("span");
  age.setAttribute("role", "timer"); // not read out at each second
  banner.append("! Stale: this data was read ", age, ". ", reason);

  function setText(place, text) {
    if (place.textContent !== text) {
      place.textContent = text;
    }
  }

  function look() {
    const now = Date.now();
    if (!banner.isConnected && document.body) {
      document.body.prepend(banner);
    }
    if (window.location.pathname !== path) {
      path = window.location.pathname;
      waiting.clear();
    }
    const failed = document.querySelector(".read-before"); // of a notice that PostgreSQL did not answer
    if (answeredAt !== null && now - answeredAt > LOOK_MS) {
      readAt = failed ? readAt : answeredAt;
      answeredAt = null;
    }
    const told = readAt === null ? "before" : ago(now - readAt);
    if (failed) {
      setText(failed, told);
    }
    const late = [...waiting.values()].filter((wait) => now - wait.since > PATIENCE * refreshMs);
    if (late.length) {
      setText(age, told);
      setText(reason, why(late[0].status));
    }
    banner.hidden = !late.length;
  }

  setInterval(look, LOOK_MS);

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    watchdog: {
      /** How often this page is refreshed. */
      expectEach(intervalMs) {
        refreshMs = intervalMs || refreshMs;
      },
    },
  });
})();
