"use strict";
// Takes what /live sends into the page, and draws the charts. Without this script the page shows one moment.
(() => {
  const KEPT_S = 3600;
  const SILENT_MS = 4000; // without an event for so long, the proxy does not answer
  const RETRY_MS = 10000; // when the browser has given up by itself
  const link = document.getElementById("link");
  const pause = document.getElementById("pause");
  let source = null;
  let heardAt = 0;
  let paused = false;
  let retry = 0;

  // ---------------------------------------------------------------- sections

  // Makes `from` equal to `to` and leaves alone what is equal: so the focus, the selection and opened details stay.
  function morph(from, to) {
    for (const { name } of [...from.attributes]) if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
    for (const { name, value } of to.attributes) {
      if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    if (!("keep" in to.dataset)) morphChildren(from, to);
  }

  function morphChildren(from, to) {
    const keyed = new Map();
    for (const child of from.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const key = wanted.dataset?.key;
      let match = key ? keyed.get(key) : at;
      while (!key && match && (match.dataset?.key || match.nodeName !== wanted.nodeName)) match = match.nextSibling;
      if (key) keyed.delete(key);
      if (!match) {
        from.insertBefore(wanted, at);
        continue;
      }
      if (match === at) at = at.nextSibling;
      else from.insertBefore(match, at);
      if (match.nodeType === Node.ELEMENT_NODE) morph(match, wanted);
      else if (match.nodeValue !== wanted.nodeValue) match.nodeValue = wanted.nodeValue;
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function isBeingCopied(element) {
    const selection = document.getSelection();
    return !selection.isCollapsed && element.contains(selection.anchorNode);
  }

  function show(section, html) {
    if (isBeingCopied(section)) return;
    const focused = section.contains(document.activeElement) ? document.activeElement : null;
    const template = document.createElement("template");
    template.innerHTML = html;
    const made = section.cloneNode(false);
    made.append(template.content);
    morphChildren(section, made);
    if (focused && document.activeElement !== focused) {
      // It was moved, or its row is gone: then the keyboard goes on from the heading of the section.
      (focused.isConnected ? focused : section.parentElement.querySelector("h2"))?.focus({ preventScroll: true });
    }
  }

  // ------------------------------------------------------------------ charts

  const charts = new Map();
  let kinds = null;
  let samples = null;

  const two = (number) => String(number).padStart(2, "0");
  const time = (s) => {
    const at = new Date(s * 1000);
    return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  };
  const short = (value) => (value >= 99.95 || Number.isInteger(value) ? value.toFixed(0) : value.toPrecision(2));
  function scaled(value, units) {
    let step = 0;
    while (value >= 999.5 && step < units.length - 1) {
      value /= 1000;
      step += 1;
    }
    return short(value) + units[step];
  }
  const WORDS = {
    number: (value) => scaled(value, ["", " k", " M", " G"]),
    count: (value) => (Number.isInteger(value) ? scaled(value, ["", " k", " M", " G"]) : ""),
    size: (value) => scaled(value, [" B", " kB", " MB", " GB", " TB"]),
    milliseconds: (value) => short(1000 * value),
  };

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function draw(place, chart) {
    const words = WORDS[chart.words];
    const axis = { stroke: color("--soft"), font: "12px system-ui, sans-serif", ticks: { show: false }, gap: 4 };
    const grid = { stroke: color("--hair"), width: 1 };
    const strokes = [color("--accent"), color("--second")];
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: place.clientHeight,
        padding: [8, 4, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: "hour" }, points: { size: 5 } },
        scales: {
          x: { range: (_, least, most) => [Math.min(least, most - 300), most] },
          y: { range: (_, __, most) => [0, most > 0 ? 1.08 * most : 1] },
        },
        axes: [
          { ...axis, grid: { show: false }, size: 22, space: 60, values: (_, at) => at.map(time) },
          { ...axis, grid, size: 54, space: 34, values: (_, at) => at.map(words) },
        ],
        series: [
          {},
          ...chart.lines.map((_, i) => ({
            stroke: strokes[i],
            width: 1.5,
            fill: i ? undefined : `${strokes[0]}22`,
            points: { show: false },
          })),
        ],
      },
      [samples.at_s, ...chart.lines.map((field) => samples[field])],
      place,
    );
    charts.set(chart, { plot, place });
  }

  function redraw() {
    if (!samples.at_s.length) return; // before the first one there is nothing to draw
    for (const [chart, { plot }] of charts) plot.setData([samples.at_s, ...chart.lines.map((field) => samples[field])]);
    if (!charts.size) drawAll();
  }

  function drawAll() {
    for (const { plot } of charts.values()) plot.destroy();
    charts.clear();
    for (const place of document.querySelectorAll("[data-chart]")) draw(place, kinds[place.dataset.chart]);
  }

  function fit() {
    for (const { plot, place } of charts.values()) {
      const { clientWidth: width, clientHeight: height } = place;
      if (width !== plot.width || height !== plot.height) plot.setSize({ width, height });
    }
  }

  async function load() {
    const response = await fetch("/history").catch(() => null);
    if (response?.ok) ({ charts: kinds, samples } = await response.json());
    if (samples) redraw();
  }

  function add({ every_s, samples: latest }) {
    if (!samples) return;
    const last = samples.at_s.at(-1) ?? 0;
    const first = latest.at_s.findIndex((at) => at > last);
    if (first < 0) return;
    if (first === 0 && last && latest.at_s[0] - last > 2 * every_s) {
      load(); // samples were missed while the page was paused or hidden
      return;
    }
    for (const field of Object.keys(samples)) samples[field].push(...latest[field].slice(first));
    const old = samples.at_s.findIndex((at) => at > samples.at_s.at(-1) - KEPT_S);
    if (old > 0) for (const field of Object.keys(samples)) samples[field].splice(0, old);
    redraw();
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.size && drawAll());
  new ResizeObserver(fit).observe(document.getElementById("hour"));

  // ---------------------------------------------------------------- the stream

  function say(text, state) {
    if (link.textContent !== text) link.textContent = text;
    link.className = state;
  }

  function connect() {
    clearTimeout(retry);
    source?.close();
    source = null;
    if (paused || document.hidden) return;
    heardAt = Date.now();
    source = new EventSource("/live");
    for (const section of document.querySelectorAll("[data-live]")) {
      source.addEventListener(section.id, (event) => {
        heard();
        show(section, event.data);
      });
    }
    source.addEventListener("samples", (event) => add(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) retry = setTimeout(connect, RETRY_MS);
    });
  }

  function heard() {
    heardAt = Date.now();
    say("Live", "live");
  }

  setInterval(() => {
    if (!paused && !document.hidden && Date.now() - heardAt > SILENT_MS) say("Not connected", "lost");
  }, 1000);

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    say(paused ? "Paused" : "Live", paused ? "" : "live");
    connect();
  });
  document.addEventListener("visibilitychange", connect);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => event.persisted && connect());
  load();
  connect();
})();
