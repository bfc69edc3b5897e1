// The least contrast (WCAG) of a text that is shown with what lies behind it.
() => {
  const numbers = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (numbers(colour)[3] !== 0) return colour;
    }
  };
  const texts = [...document.querySelectorAll("main *")].filter((e) =>
    e.checkVisibility() && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return Math.min(...texts.filter((e) => e.tagName !== "title").map((e) => {
    const style = getComputedStyle(e);
    const two = [light(e.ownerSVGElement ? style.fill : style.color), light(behind(e))].sort((a, b) => b - a);
    return (two[0] + 0.05) / (two[1] + 0.05);
  }));
}
