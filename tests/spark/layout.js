// What is drawn and readable of the page as it stands: faults are text outside of the window or on top of other text.
() => {
  const faults = [];
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) faults.push(`the page is ${wide} px wider than the window`);
  const shown = (e) => e.checkVisibility() && e.getClientRects().length > 0;
  const texts = [...document.querySelectorAll("main *")].filter((e) => {
    if (e.tagName === "title" || e.closest("style, .scroll")) return false;
    return shown(e) && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  });
  const name = (e) => e.textContent.trim().slice(0, 40);
  const boxes = texts.map((e) => [e, e.getBoundingClientRect()]);
  boxes.forEach(([a, p], i) => {
    if (p.left < 0 || p.right > window.innerWidth) faults.push(`outside of the window: ${name(a)}`);
    boxes.slice(i + 1).forEach(([b, q]) => {
      if (a.contains(b)) return;
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 2 && y > 4) faults.push(`"${name(a)}" lies over "${name(b)}"`);
    });
  });
  const drawings = [...document.querySelectorAll("svg")].filter(shown);
  const scale = (e) => (e.ownerSVGElement ? e.ownerSVGElement.getScreenCTM().a : 1);
  const sizes = texts.map((e) => parseFloat(getComputedStyle(e).fontSize) * scale(e));
  return { faults: faults.slice(0, 20), drawings: drawings.length, smallest: Math.min(...sizes) };
}
