"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const number = (value) => value.toLocaleString("en-US");
  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(1) : "0.0") + " %";
  const axes = ["time", "height", "width"];
  const state = { view: data.samples.length ? "samples" : "skipped", current: 0, filter: "" };

  // All text of the dataset goes through textContent: nothing of it is ever read as HTML.
  function make(tag, classes, text, ...children) {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    if (text !== undefined && text !== null) element.textContent = text;
    element.append(...children);
    return element;
  }

  const tip = make("div");
  tip.id = "tip";
  tip.hidden = true;
  function showTip(event, text) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 18;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = (below + box.height > innerHeight ? event.clientY - box.height - 12 : below) + "px";
  }
  const hideTip = () => { tip.hidden = true; };

  // Positions are kept as runs of (first, step, count); `at(axis, place)` finds one.
  function positionsOf(sample) {
    const expanded = sample.positions.map((runs) => {
      const values = new Int32Array(sample.numTokens);
      let place = 0;
      for (const [first, step, count] of runs) for (let i = 0; i < count; i++) values[place++] = first + i * step;
      return values;
    });
    return (place) => expanded.length === 1
      ? "position " + number(expanded[0][place])
      : "position " + expanded.map((axis, i) => (axes[i] || "axis " + i) + " " + number(axis[place])).join(" · ");
  }

  function placeOf(runs, cell) {
    for (const [start, count] of runs) {
      if (cell < count) return start + cell;
      cell -= count;
    }
    return -1;
  }

  // -- a sample -----------------------------------------------------------------------------------------------------

  function drawSample(sample) {
    const at = positionsOf(sample);
    const media = sample.media.reduce((sum, medium) => sum + medium.numTokens, 0);
    const section = make("section", "sample");
    section.dataset.key = sample.key;
    section.append(make("h2", "", sample.key));
    const meta = make("div", "meta");
    meta.append(make("b", "", number(sample.numTokens) + " tokens"), ", ", make("b", "", number(sample.numTrained)),
      " trained on (" + percent(sample.numTrained, sample.numTokens) + "), " + number(media) + " of media · " + sample.place);
    section.append(meta);
    const shown = make("div", "images");
    shown.append(...sample.media.map((medium, i) => drawMedium(medium, i, at)));
    if (sample.media.length) section.append(shown);
    section.append(legend(), drawTokens(sample, at));
    return section;
  }

  function legend() {
    const box = make("div", "legend");
    for (const [classes, name, text] of [
      ["t trained first last", "green", "trained on"], ["t e", "<end>", "terminator that is trained on"],
      ["t c", "<token>", "control token"], ["t m", "image ×n", "media tokens, never trained on"],
    ]) box.append(make("span", "", null, make("span", classes, name), " " + text));
    return box;
  }

  function drawTokens(sample, at) {
    const flow = make("div", "flow");
    const owners = new Map(); // first token of a run of a medium → the number of the medium
    sample.media.forEach((medium, i) => { for (const [start] of medium.runs) owners.set(start, i); });
    let odd = false;
    sample.tokens.forEach(([start, ids, count, text, kind, trained], i) => {
      const before = i && sample.tokens[i - 1][5], after = i + 1 < sample.tokens.length && sample.tokens[i + 1][5];
      odd = !odd;
      const classes = ["t", kind, odd && kind === "x" ? "odd" : "", trained ? "trained" : "",
        trained && !before ? "first" : "", trained && !after ? "last" : "", text ? "" : "empty"];
      const token = make("span", classes.filter(Boolean).join(" "), count > 1 && kind === "m" ? text + " ×" + number(count) : text);
      token.dataset.start = start;
      token.dataset.count = count;
      token.addEventListener("mousemove", (event) => {
        const last = start + count - 1;
        const places = count > 1 ? "tokens " + number(start) + " – " + number(last) : "token " + number(start);
        const where = count > 1 ? at(start) + "\n… " + at(last) : at(start);
        showTip(event, places + " · id " + ids.join(" ") + "\n" + (trained ? "trained on" : "not trained on") + "\n" + where);
      });
      token.addEventListener("mouseleave", hideTip);
      if (kind === "m" && owners.has(start)) {
        token.addEventListener("click", () => flash(document.querySelectorAll("figure")[owners.get(start)]));
      }
      flow.append(token);
    });
    return flow;
  }

  function flash(figure) {
    figure.scrollIntoView({ block: "center" });
    (figure.querySelector(".strip") || figure.querySelector(".frame")).animate([{ boxShadow: "0 0 0 5px #2f5fd0" }, { boxShadow: "0 0 0 1px transparent" }], 900);
  }

  const seconds = (value) => value.toFixed(2) + " s";

  function drawMedium(medium, index, at) {
    const figure = make("figure", medium.kind);
    const caption = make("figcaption", "", null, make("b", "", medium.kind + " " + (index + 1) + "  " + medium.name),
      "  " + describe(medium) + number(medium.numTokens) + " tokens");
    if (medium.frames) figure.append(drawFrames(medium, at));
    else if (medium.src) figure.append(drawPicture(medium, medium.src, Math.min(1, 540 / medium.width, 380 / medium.height), 0, medium.name, "", at));
    else figure.append(drawBlank(medium));
    figure.append(caption);
    return figure;
  }

  function describe(medium) {
    if (medium.rate) return seconds(medium.seconds) + " at " + number(medium.rate) + " Hz → ";
    const size = medium.width + " × " + medium.height + " px";
    const grid = medium.rows ? medium.rows + " × " + medium.columns : "";
    if (!medium.frames) return size + " → " + (grid ? grid + " = " : "");
    const shown = medium.frames.length < medium.numFrames ? " (" + medium.frames.length + " shown)" : "";
    const taken = ", " + seconds(medium.seconds) + " → " + medium.numFrames + " frames" + shown;
    return size + taken + (grid ? ", " + medium.steps + " × " + grid + " = " : ", ");
  }

  // The frames of one step in one box: they share their tokens.
  function drawFrames(medium, at) {
    const strip = make("div", "strip");
    let box, last = -1;
    const longest = Math.max(medium.width, medium.height);
    for (const [, frame, second, step, src] of medium.frames) {
      if (step !== last) {
        if (last >= 0 && step !== last + 1) strip.append(make("span", "gap", "…"));
        box = make("div", "step");
        strip.append(box);
        last = step;
      }
      const first = medium.steps ? step * medium.numTokens / medium.steps : 0;
      const what = "frame " + number(frame) + " at " + seconds(second);
      box.append(make("div", "shot", null, drawPicture(medium, src, Math.min(1, 170 / longest), first, what, what + "\n", at),
        make("span", "when", seconds(second))));
    }
    return strip;
  }

  function drawBlank(medium) {
    const frame = make("div", "frame", null, make("div", "blank", medium.kind));
    frame.addEventListener("mousemove", (event) => showTip(event, number(medium.numTokens) + " tokens" +
      (medium.runs.length ? "\nfrom token " + number(medium.runs[0][0]) : "")));
    frame.addEventListener("mouseleave", hideTip);
    return frame;
  }

  // `first`: how many tokens of the medium come before those of this picture; `head`: the first line of its tips.
  function drawPicture(medium, src, scale, first, name, head, at) {
    const frame = make("div", "frame");
    const picture = make("img");
    const canvas = make("canvas");
    picture.src = src;
    picture.alt = name;
    picture.style.width = Math.round(medium.width * Math.max(90 / medium.width, scale)) + "px"; // whatever the size of its copy here
    frame.append(picture, canvas);
    const place = (event) => {
      const box = frame.getBoundingClientRect();
      const column = Math.min(medium.columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * medium.columns)));
      const row = Math.min(medium.rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * medium.rows)));
      return [row, column];
    };
    if (medium.rows) {
      picture.addEventListener("load", () => drawGrid(canvas, medium));
      frame.addEventListener("mousemove", (event) => {
        const [row, column] = place(event);
        const token = placeOf(medium.runs, first + row * medium.columns + column);
        drawGrid(canvas, medium, row, column);
        showTip(event, head + "row " + (row + 1) + ", column " + (column + 1) + " · token " + number(token) + "\n" + at(token));
      });
      frame.addEventListener("mouseleave", () => { hideTip(); drawGrid(canvas, medium); });
    } else {
      const own = medium.steps || 1;
      const start = placeOf(medium.runs, first);
      frame.addEventListener("mousemove", (event) => showTip(event, head +
        number(medium.numTokens / own) + " tokens" + (medium.frames && !medium.steps ? " for all frames" : "") +
        ", not laid out as one grid (tiles, or pooled)" + (start >= 0 ? "\nfrom token " + number(start) : "")));
      frame.addEventListener("mouseleave", hideTip);
    }
    return frame;
  }

  function drawGrid(canvas, image, row, column) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const pen = canvas.getContext("2d");
    const dx = canvas.width / image.columns, dy = canvas.height / image.rows;
    const lines = () => {
      pen.beginPath();
      for (let i = 1; i < image.columns; i++) { pen.moveTo(i * dx, 0); pen.lineTo(i * dx, canvas.height); }
      for (let i = 1; i < image.rows; i++) { pen.moveTo(0, i * dy); pen.lineTo(canvas.width, i * dy); }
      pen.stroke();
    };
    if (Math.min(dx, dy) > 3 * scale) { // a dark line under a light one shows on any picture
      pen.lineWidth = 2 * scale; pen.strokeStyle = "rgba(0, 0, 0, .22)"; lines();
      pen.lineWidth = scale; pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--grid"); lines();
    }
    if (row !== undefined) {
      pen.fillStyle = "rgba(80, 140, 255, .45)"; pen.fillRect(column * dx, row * dy, dx, dy);
      pen.lineWidth = 2 * scale; pen.strokeStyle = "#fff"; pen.strokeRect(column * dx, row * dy, dx, dy);
    }
  }

  // -- packs and what is skipped ------------------------------------------------------------------------------------

  function drawPacks() {
    const section = make("section", "packs");
    const used = data.packs.flat().reduce((sum, [, tokens]) => sum + tokens, 0), room = data.packs.length * data.packLength;
    section.append(make("h2", "", number(data.packs.length) + " packs of " + number(data.packLength) + " tokens"));
    section.append(make("div", "meta", "filled " + percent(used, room) + " with these samples alone, which are few: " +
      "packloom stats tells the fill of the whole dataset. Hatched: waste. A click shows the sample."));
    data.packs.forEach((members, i) => {
      const bar = make("div", "bar");
      const tokens = members.reduce((sum, [, own]) => sum + own, 0);
      members.forEach(([place, own, aligned], nth) => {
        const sample = data.samples[place];
        const segment = make("button", "seg" + (nth % 2 ? " even" : "") + (matches(sample.key) ? "" : " other"), sample.key);
        segment.style.width = 100 * own / data.packLength + "%";
        segment.addEventListener("mousemove", (event) => showTip(event, sample.key + "\n" + number(own) + " tokens, " +
          number(sample.numTrained) + " trained on" + (aligned > own ? "\n" + (aligned - own) + " to align it" : "")));
        segment.addEventListener("mouseleave", hideTip);
        segment.addEventListener("click", () => { state.view = "samples"; state.current = place; draw(); });
        bar.append(segment);
        if (aligned > own) {
          const gap = make("i", "gap");
          gap.style.width = 100 * (aligned - own) / data.packLength + "%";
          bar.append(gap);
        }
      });
      const waste = data.packLength - tokens;
      section.append(make("div", "pack", null, make("span", "n", "pack " + (i + 1)), bar,
        make("span", "fill", percent(tokens, data.packLength) + ", waste " + number(waste))));
    });
    return section;
  }

  function drawSkipped() {
    const section = make("section", "skipped");
    const rows = data.skipped.filter(([key]) => matches(key));
    const of = rows.length < data.skipped.length ? " of " + number(data.skipped.length) + " skipped samples match the filter" : " skipped samples";
    section.append(make("h2", "", number(rows.length) + of));
    section.append(make("div", "meta", data.skipped.length ? "Training leaves these out, and counts each." : "Training will leave out none of the samples that were looked at."));
    if (!rows.length) return section;
    const table = make("table", "", null, make("tr", "", null, make("th", "", "sample"), make("th", "", "kind"), make("th", "", "reason")));
    for (const [key, place, code, reason, next] of rows) {
      table.append(make("tr", "", null, make("td", "", null, key, make("span", "place", place)),
        make("td", "", null, make("code", "", code)), make("td", "", null, reason, make("span", "next", "Next: " + next))));
    }
    section.append(table);
    return section;
  }

  // -- the frame around them ----------------------------------------------------------------------------------------

  const matches = (key) => key.toLowerCase().includes(state.filter);
  const shown = () => data.samples.map((sample, i) => i).filter((i) => matches(data.samples[i].key));

  const header = make("header"), nav = make("nav"), main = make("main");
  const tabs = make("div", "tabs");
  tabs.setAttribute("role", "tablist");
  const buttons = {};
  for (const [view, name] of [["samples", "Samples " + data.samples.length], ["packs", "Packs " + data.packs.length], ["skipped", "Skipped " + data.skipped.length]]) {
    buttons[view] = make("button", "", name);
    buttons[view].setAttribute("role", "tab");
    buttons[view].addEventListener("click", () => { state.view = view; draw(); });
    tabs.append(buttons[view]);
  }
  const theme = make("button", "tool", "dark");
  theme.id = "theme";
  theme.addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  const of = data.total === null ? "" : " of " + number(data.total);
  header.append(make("h1", "", "packloom inspect"), make("span", "what", data.dataset + " · " +
    number(data.samples.length + data.skipped.length) + of + " samples · " + data.processor + " (" + data.family + ")"), tabs, theme);
  const filter = make("input", "filter");
  filter.type = "search";
  filter.placeholder = "filter by key";
  filter.setAttribute("aria-label", "filter by key");
  filter.addEventListener("input", () => {
    state.filter = filter.value.trim().toLowerCase();
    const left = shown();
    if (left.length && !left.includes(state.current)) state.current = left[0];
    draw();
  });
  const list = make("ol");
  const help = make("div", "keys");
  for (const [keys, text] of [[["j", "k"], "next, previous"], [["/"], "filter"], [["g"], "grid"], [["s", "p", "x"], "samples, packs, skipped"], [["d"], "dark"]]) {
    help.append(make("span", "", null, ...keys.flatMap((key) => [make("kbd", "", key), " "]), text));
  }
  nav.append(filter, list, help);
  document.body.append(header, nav, main, tip);

  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    theme.textContent = name === "dark" ? "light" : "dark";
  }

  function drawList() {
    const left = shown();
    list.replaceChildren(...left.map((i) => {
      const sample = data.samples[i];
      const share = make("i");
      share.style.width = percent(sample.numTrained, sample.numTokens).replace(" ", "");
      const kinds = [...new Set(sample.media.map((medium) => medium.kind))];
      const media = kinds.map((kind) => sample.media.filter((medium) => medium.kind === kind).length)
        .map((count, i) => ", " + count + " " + kinds[i] + (count > 1 && kinds[i] !== "audio" ? "s" : "")).join("");
      const item = make("li", "", null, make("span", "key", sample.key),
        make("span", "sub", number(sample.numTokens) + " tokens" + media), make("span", "share", null, share));
      item.setAttribute("aria-current", String(state.view === "samples" && i === state.current));
      item.addEventListener("click", () => { state.view = "samples"; state.current = i; draw(); });
      return item;
    }));
    if (!left.length) list.append(make("li", "none", "no key matches"));
    const current = list.querySelector('[aria-current="true"]');
    if (current) current.scrollIntoView({ block: "nearest" });
  }

  function draw() {
    hideTip();
    for (const view in buttons) buttons[view].setAttribute("aria-selected", String(view === state.view));
    drawList();
    const left = shown();
    const page = state.view === "packs" ? drawPacks() : state.view === "skipped" ? drawSkipped()
      : left.includes(state.current) ? drawSample(data.samples[state.current]) : make("section", "", "No sample matches the filter.");
    main.replaceChildren(page);
    main.scrollTop = 0;
  }

  function step(by) {
    const left = shown();
    if (!left.length) return;
    const at = left.indexOf(state.current);
    state.view = "samples";
    state.current = left[Math.min(left.length - 1, Math.max(0, at + by))];
    draw();
  }

  const keys = {
    j: () => step(1), ArrowRight: () => step(1), k: () => step(-1), ArrowLeft: () => step(-1),
    g: () => document.body.classList.toggle("no-grid"), d: () => theme.click(),
    s: () => buttons.samples.click(), p: () => buttons.packs.click(), x: () => buttons.skipped.click(),
    "/": () => filter.select(), // and focus: what is typed next is a new filter
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === filter) {
      if (event.key === "Escape" || event.key === "Enter") filter.blur();
      return;
    }
    const action = Object.hasOwn(keys, event.key) ? keys[event.key] : null;
    if (action) { event.preventDefault(); action(); }
  });

  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  draw();
})();
