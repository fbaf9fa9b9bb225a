"use strict";
(() => {
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const more = document.getElementById("more");
  const articles = document.getElementById("articles");
  const reader = document.querySelector(".reader");
  const state = document.getElementById("state");
  const { part, outcome, tool, text, beside, count } = form.elements;
  let after = 0;      // where the next page begins; null: nowhere
  let total = null;   // how many there are, where that is known
  let asked = 0;      // the latest question; answers to earlier ones are dropped
  let loading = false;
  let current = null; // id of the trajectory that is open
  let opened = 0;     // the latest request for one; answers to earlier ones are dropped

  const idOf = (item) => item.firstElementChild.hash.slice(1);
  const items = () => [...list.children];
  const fetchText = async (path, query) => {
    const answer = await fetch(path + "?" + new URLSearchParams(query));
    if (!answer.ok) throw new Error(await answer.text());
    return answer.text();
  };
  const fetchJson = async (path, query = {}) => JSON.parse(await fetchText(path, query));
  const number = (n) => n.toLocaleString("en");

  const filters = () => {
    const query = {};
    for (const name of ["part", "outcome", "reward", "tool", "order", "text"]) {
      const value = form.elements[name].value;
      if (value) query[name] = value;
    }
    return query;
  };

  const tell = (found, rows, searching) => {
    if (total !== null) count.textContent = total === 1 ? "1 trajectory" : number(total) + " trajectories";
    else if (searching) count.textContent = number(found) + " found, " + number(after) + " of " + number(rows) + " searched";
    else count.textContent = number(found) + (after === null ? " found" : " found so far");
  };

  // Adds a page to the list. A search goes on until it has found a page or read everything.
  const load = async () => {
    if (loading || after === null) return;
    loading = true;
    const question = asked;
    try {
      let added = 0;
      do {
        const page = await fetchJson("/list", { ...filters(), after });
        if (question !== asked) return;
        list.insertAdjacentHTML("beforeend", page.html);
        ({ after, total } = page);
        added += page.count;
        tell(list.children.length, page.rows, after !== null && added < 1);
      } while (after !== null && added < 1);
      more.hidden = after === null;
      mark();
      if (!current && list.children.length) await open(idOf(list.firstElementChild), false);
    } catch (error) {
      if (question === asked) count.textContent = error.message;
    } finally {
      if (question === asked) loading = false;
    }
  };

  const restart = async (keep) => {
    asked += 1;
    loading = false;
    after = 0;
    total = null;
    list.replaceChildren();
    more.hidden = true;
    if (!keep) current = null;
    await load();
    if (!list.children.length && !keep) articles.replaceChildren();
  };

  const mark = () => {
    for (const item of list.children) {
      if (idOf(item) === current) item.firstElementChild.setAttribute("aria-current", "true");
      else item.firstElementChild.removeAttribute("aria-current");
    }
  };

  const open = async (id, focus) => {
    current = id;
    const request = ++opened;
    mark();
    const query = { id };
    if (beside && beside.checked) query.beside = "1";
    let html;
    try {
      html = await fetchText("/trajectory", query);
    } catch (error) {
      if (request === opened) articles.textContent = error.message;
      return;
    }
    if (request !== opened) return;
    articles.innerHTML = html;
    unfold();
    const item = items().find((other) => idOf(other) === id);
    if (item) {
      const nav = list.parentElement;
      const top = item.offsetTop - nav.offsetTop;
      if (top < nav.scrollTop || top + item.offsetHeight > nav.scrollTop + nav.clientHeight) {
        nav.scrollTop = top - nav.clientHeight / 3;
      }
    }
    if (!focus) return;
    history.replaceState(null, "", "#" + id);
    const article = articles.querySelector("article");
    if (!article) return;
    article.focus({ preventScroll: true });
    const place = articles.getBoundingClientRect().top;
    if (place < 0 || place > innerHeight / 2) articles.scrollIntoView({ block: "start" });
  };

  const move = async (by) => {
    const all = items();
    let place = all.findIndex((item) => idOf(item) === current) + by;
    if (place >= all.length && after !== null) {
      await load();
      return move(by);
    }
    place = Math.min(Math.max(place, 0), all.length - 1);
    if (all[place] && idOf(all[place]) !== current) await open(idOf(all[place]), true);
  };

  const showTokens = async (details) => {
    const view = details.querySelector(".token-view");
    if (view.childElementCount) return;
    const id = details.closest("article").id;
    try {
      view.innerHTML = await fetchText("/tokens", { id, turn: details.dataset.turn });
      const tokens = view.querySelector(".token-list");
      const sampled = view.querySelector(".token-list .s");
      if (sampled) tokens.scrollTop = sampled.offsetTop - tokens.offsetTop - tokens.clientHeight / 3;
    } catch (error) {
      view.textContent = error.message;
    }
  };

  // What a key unfolded stays unfolded from one trajectory to the next.
  const unfolded = new Map([[".tokens", false], [".message details", false]]);
  const unfold = () => {
    for (const [selector, wanted] of unfolded) {
      if (wanted) for (const details of articles.querySelectorAll(selector)) details.open = true;
    }
  };
  const toggleAll = (selector) => {
    unfolded.set(selector, !unfolded.get(selector));
    for (const details of articles.querySelectorAll(selector)) details.open = unfolded.get(selector);
  };

  const options = (select, values) => {
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...values.map((value) => {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = value;
      return option;
    }));
    select.value = values.includes(chosen) ? chosen : "";
  };

  const facets = async () => {
    const known = await fetchJson("/facets", { part: part.value });
    options(outcome, known.outcomes);
    options(tool, known.tools);
  };

  // What is new on disk: the overview follows by itself, the list when asked, so that nothing moves under a reader.
  let seen = null;
  const look = async () => {
    let now;
    try {
      now = await fetchJson("/status");
    } catch {
      state.textContent = "The server has stopped.";
      return setTimeout(look, 5000);
    }
    const reading = now.read < now.size;
    state.textContent = reading ? "reading " + Math.floor(100 * now.read / now.size) + " %" : "";
    if (now.damaged) state.textContent += " " + number(now.damaged) + " damaged lines left out";
    const key = JSON.stringify([now.rows, now.metrics, now.parts]);
    if (seen !== null && key !== seen.key) {
      document.getElementById("overview").innerHTML = await fetchText("/overview", {});
      await facets();
      if (list.children.length < 100 && !text.value) await restart(true);
      else {
        const button = document.createElement("button");
        button.textContent = "new trajectories: show";
        button.addEventListener("click", () => { button.remove(); restart(true); });
        state.append(button);
      }
    }
    seen = { key };
    setTimeout(look, reading ? 1000 : 3000);
  };

  let timer = 0;
  form.addEventListener("input", (event) => {
    if (event.target === beside) {
      reader.classList.toggle("is-beside", beside.checked);
      if (current) open(current, false);
      return;
    }
    clearTimeout(timer);
    timer = setTimeout(async () => {
      if (event.target === part) await facets();
      restart(false);
    }, event.target === text ? 250 : 0);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", load);
  new IntersectionObserver((entries) => entries.some((e) => e.isIntersecting) && load(), { root: list.parentElement }).observe(more);

  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (!item || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    open(idOf(item), true);
  });
  articles.addEventListener("toggle", (event) => {
    if (event.target.matches(".tokens") && event.target.open) showTokens(event.target);
  }, true);

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.matches("input[type=search], select, textarea")) {
      if (event.key !== "Escape") return;
      event.target.blur();
      event.preventDefault(); // the browser would empty the field
      return;
    }
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") text.focus();
    else if (event.key === "t") toggleAll(".tokens");
    else if (event.key === "u") toggleAll(".message details");
    else if (event.key === "b" && beside) beside.click();
    else return;
    event.preventDefault();
  });

  const follow = () => {
    const id = location.hash.slice(1);
    if (/^p\d+-\d+$/.test(id)) open(id, true);
  };
  addEventListener("hashchange", follow);
  document.documentElement.classList.add("interactive");

  (async () => {
    const wanted = /^#(p\d+)-\d+$/.exec(location.hash);
    if (wanted && [...part.options].some((option) => option.value === wanted[1])) part.value = wanted[1];
    if (wanted) await open(location.hash.slice(1), false);
    await facets();
    await load();
    look();
  })();
})();
