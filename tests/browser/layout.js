// What is wrong with the layout of the page as it stands: text outside of the window, cut off, or on top of other text.
() => {
  const faults = [];
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 1) faults.push(`the page is ${wide} px wider than the window`);
  const name = (e) => `${e.tagName.toLowerCase()}.${e.className} "${e.textContent.trim().slice(0, 40)}"`;
  const scrolls = (e) => e.closest(".scroll, pre, .preview, .skip, thead, #toasts, option, noscript, [hidden]");
  const top = document.querySelector("dialog[open]") ?? document.body;
  const texts = [...top.querySelectorAll("*")].filter((e) => {
    if (e.closest("dialog:not([open])") || scrolls(e)) return false;
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    return own && e.checkVisibility() && e.getClientRects().length;
  });
  const boxes = texts.map((e) => {
    const range = document.createRange();
    range.selectNodeContents(e);
    return [e, range.getBoundingClientRect()];
  });
  for (const [e, box] of boxes) {
    if (box.left < -1 || box.right > window.innerWidth + 1) faults.push(`outside of the window: ${name(e)}`);
    const style = getComputedStyle(e);
    if (style.overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1) faults.push(`cut off: ${name(e)}`);
  }
  for (let i = 0; i < boxes.length; i += 1) {
    for (let j = i + 1; j < boxes.length; j += 1) {
      const [a, p] = boxes[i];
      const [b, q] = boxes[j];
      if (a.contains(b) || b.contains(a) || a.closest(".side") !== b.closest(".side")) continue;
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 2 && y > 3) faults.push(`${name(a)} lies over ${name(b)}`);
    }
  }
  return [...new Set(faults)].slice(0, 20);
}
