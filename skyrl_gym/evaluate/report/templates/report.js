"use strict";
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const items = [...document.querySelectorAll("#list > li")];
  const articles = new Map([...document.querySelectorAll("#articles > article")].map((a) => [a.id, a]));
  const texts = new Map();
  const idOf = (item) => item.firstElementChild.hash.slice(1);
  let current = null;

  const textOf = (id) => {
    if (!texts.has(id)) texts.set(id, articles.get(id).textContent.toLowerCase());
    return texts.get(id);
  };

  const rewardFits = (wanted, value) => {
    if (!wanted) return true;
    if (value === "") return wanted === "excluded";
    const reward = Number(value);
    return wanted === (reward >= 1 ? "passed" : reward > 0 ? "partial" : "none");
  };

  const fits = (item) => {
    const { part, outcome, reward, text } = form.elements;
    return (!part || !part.value || item.dataset.part === part.value)
      && (!outcome.value || item.dataset.outcome === outcome.value)
      && rewardFits(reward.value, item.dataset.reward)
      && (!text.value || textOf(idOf(item)).includes(text.value.toLowerCase()));
  };

  const show = (item, focus) => {
    current = item;
    for (const other of items) {
      const here = other === item;
      if (here) other.firstElementChild.setAttribute("aria-current", "true");
      else other.firstElementChild.removeAttribute("aria-current");
      articles.get(idOf(other)).hidden = !here;
    }
    if (!item) return;
    const list = item.closest("nav");
    const top = item.offsetTop - list.offsetTop;
    if (top < list.scrollTop || top + item.offsetHeight > list.scrollTop + list.clientHeight) {
      list.scrollTop = top - list.clientHeight / 3;
    }
    if (focus) history.replaceState(null, "", "#" + idOf(item));
  };

  const shown = () => items.filter((item) => !item.hidden);

  const filter = () => {
    for (const item of items) item.hidden = !fits(item);
    const left = shown();
    form.elements.count.textContent = left.length === 1 ? "1 trajectory" : left.length + " trajectories";
    if (!left.includes(current)) show(left[0] ?? null, false);
  };

  const move = (by) => {
    const left = shown();
    const next = left[Math.min(Math.max(left.indexOf(current) + by, 0), left.length - 1)];
    if (!next || next === current) return;
    show(next, true);
    const article = articles.get(idOf(next));
    article.focus({ preventScroll: true });
    const top = article.getBoundingClientRect().top;
    if (top < 0 || top > innerHeight / 2) article.scrollIntoView({ block: "start" });
  };

  document.getElementById("list").addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (!item || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    show(item, true);
    const article = articles.get(idOf(item));
    if (article.getBoundingClientRect().top < 0 || matchMedia("(max-width: 900px)").matches) {
      article.scrollIntoView({ block: "start" });
    }
    article.focus({ preventScroll: true });
  });

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") form.elements.text.focus();
    else return;
    event.preventDefault();
  });

  const follow = () => show(items.find((item) => idOf(item) === location.hash.slice(1)) ?? current ?? items[0], false);

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  form.hidden = false;
  document.documentElement.classList.add("interactive");
  follow();
  filter();
})();
