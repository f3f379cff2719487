// The status page, live. It gets the same page again every second and changes what is different, so that
// selected text, the focus and open details stay. Sorting and the description under a chart are the only things
// that it does by itself.
(() => {
  'use strict';

  const everyMs = Number(document.body.dataset.every) * 1000;
  const state = document.getElementById('state');
  const pause = document.getElementById('pause');
  /** The column that each table is sorted by: its number, and whether the largest comes first. */
  const sorted = new Map();
  /** For each route: how many requests it had when. */
  const counts = new Map();
  let isPaused = false;
  let failures = 0;
  let timer = 0;

  /** What the server leaves to a script, in its page as in each new one. */
  function prepare(root) {
    for (const title of root.querySelectorAll('.column > title')) {
      title.parentNode.dataset.say = title.textContent;
      title.remove();
    }
    for (const chart of root.querySelectorAll('.chart')) chart.setAttribute('tabindex', '0');
    for (const head of root.querySelectorAll('th[data-sort]')) {
      const button = document.createElement('button');
      button.type = 'button';
      button.append(...head.childNodes);
      head.append(button);
    }
    for (const cell of root.querySelectorAll('td[data-count]')) showRate(cell);
    for (const table of root.querySelectorAll('table[data-key]')) sort(table);
  }

  /** Requests a second, from the counts of the last ten seconds. */
  function showRate(cell) {
    const route = cell.parentNode.dataset.key;
    const now = performance.now();
    const known = (counts.get(route) ?? []).filter((entry) => entry.at > now - 10500);
    known.push({ at: now, count: Number(cell.dataset.count) });
    counts.set(route, known);
    const [first, last] = [known[0], known[known.length - 1]];
    const rate = ((last.count - first.count) * 1000) / (last.at - first.at);
    if (!(rate >= 0)) return;
    cell.dataset.v = rate;
    cell.textContent = (rate < 9.95 ? rate.toFixed(1) : Math.round(rate).toLocaleString('en')) + '/s';
  }

  function sort(table) {
    const by = sorted.get(table.dataset.key);
    if (!by) return;
    const heads = table.tHead.rows[0].cells;
    for (const [index, head] of [...heads].entries()) {
      if (index === by.column) head.setAttribute('aria-sort', by.isFalling ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    }
    const value = (row) => {
      const cell = row.cells[by.column];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
    };
    const rows = [...table.tBodies[0].rows].sort(compare);
    table.tBodies[0].append(...(by.isFalling ? rows.reverse() : rows));
  }

  /** Makes `old` equal to `fresh` with as few changes as possible. */
  function patch(old, fresh) {
    if (old.isEqualNode(fresh) || old.dataset?.own !== undefined) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      // A reader has opened the details, or has chosen a column.
      if (!fresh.hasAttribute(name) && name !== 'open' && name !== 'data-chosen') old.removeAttribute(name);
    }
    const keyed = new Map();
    for (const child of old.children) {
      if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
    }
    let next = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = child.dataset?.key;
      let match = key === undefined ? next : keyed.get(key);
      keyed.delete(key);
      // An element with a key waits for its own.
      while (key === undefined && match?.dataset?.key !== undefined) match = match.nextSibling;
      if (!match) {
        old.insertBefore(child, next);
        continue;
      }
      if (match === next) next = next.nextSibling;
      else old.insertBefore(match, next);
      patch(match, child);
    }
    while (next) {
      const after = next.nextSibling;
      next.remove();
      next = after;
    }
  }

  function show(text, kind) {
    if (state.textContent !== text) state.textContent = text;
    state.className = kind;
  }

  async function refresh() {
    clearTimeout(timer);
    if (isPaused || document.hidden) return;
    try {
      const answer = await fetch(location.href, { cache: 'no-store', signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error('status ' + answer.status);
      const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
      prepare(fresh);
      // The reader has paused the page while it waited for the answer.
      if (isPaused) return;
      patch(document.body, fresh.body);
      describe();
      failures = 0;
      show('live', 'live');
    } catch (error) {
      if (isPaused) return;
      failures += 1;
      show(error.name === 'TypeError' || error.name === 'TimeoutError' ? 'no answer' : error.message, 'lost');
    }
    clearTimeout(timer);
    timer = setTimeout(refresh, Math.min(everyMs * 2 ** failures, 15000));
  }

  document.addEventListener('click', (event) => {
    const head = event.target.closest?.('th[data-sort]');
    if (!head) return;
    const table = head.closest('table');
    const by = sorted.get(table.dataset.key);
    const isFalling = by?.column === head.cellIndex ? !by.isFalling : head.classList.contains('n');
    sorted.set(table.dataset.key, { column: head.cellIndex, isFalling });
    sort(table);
  });

  /** Shows what the column under the pointer, or the chosen one, is about. */
  function describe() {
    for (const readout of document.querySelectorAll('.readout')) {
      const chart = readout.closest('section').querySelector('.chart');
      const column = chart.querySelector('.column:hover') ?? chart.querySelector('[data-chosen]');
      const text = column?.dataset.say ?? '';
      if (readout.textContent !== text) readout.textContent = text;
    }
  }

  document.addEventListener('pointerover', describe);

  // The arrows walk through the columns of the chart that has the focus.
  document.addEventListener('keydown', (event) => {
    const chart = event.target.closest?.('.chart');
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!chart || !step) return;
    event.preventDefault();
    const columns = [...chart.querySelectorAll('.column')].sort((a, b) => a.x.baseVal.value - b.x.baseVal.value);
    if (columns.length === 0) return;
    const before = columns.findIndex((column) => column.dataset.chosen !== undefined);
    const from = before < 0 ? columns.length - (step > 0 ? 1 : 0) : before;
    if (before >= 0) delete columns[before].dataset.chosen;
    columns[Math.min(Math.max(from + step, 0), columns.length - 1)].dataset.chosen = '';
    describe();
  });

  pause.hidden = false;
  pause.addEventListener('click', () => {
    isPaused = !isPaused;
    pause.setAttribute('aria-pressed', String(isPaused));
    pause.textContent = isPaused ? 'Go on' : 'Pause';
    if (isPaused) show('paused', '');
    else refresh();
  });
  document.addEventListener('visibilitychange', refresh);

  document.documentElement.classList.add('scripted');
  prepare(document);
  show('live', 'live');
  timer = setTimeout(refresh, everyMs);
})();
