// Runs inside a page of the report, in a browser (report_page_test.cc puts it there), and tells its parent what is wrong with the page as
// it is laid out now: one line per finding.
(() => {
  const findings = [];
  const tell = (what, element) => {
    if (findings.length >= 40) return;
    const name = element && element.tagName
      ? `<${element.tagName.toLowerCase()} class="${element.getAttribute('class') || ''}"> ${(element.textContent || '').trim().slice(0, 40)}`
      : '';
    findings.push(`${what} ${name}`);
  };
  const overlap = (a, b, by) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > by && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > by;

  const checkOverflow = () => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width) tell(`the page scrolls sideways: ${document.documentElement.scrollWidth} > ${width}`);
    for (const element of document.body.querySelectorAll('*')) {
      if (element.closest('.scroll') !== null && !element.matches('.scroll')) continue;
      if (element.closest('thead') !== null || element.closest('svg') !== null && !element.matches('svg')) continue;
      const box = element.getBoundingClientRect();
      if (box.width === 0) continue;
      if (box.left < -0.5 || box.right > width + 0.5) tell(`beyond the page: ${box.left.toFixed(1)} to ${box.right.toFixed(1)}`, element);
      const style = getComputedStyle(element);
      if (style.display !== 'inline' && style.overflowX === 'visible' && element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
        tell(`its content is wider: ${element.scrollWidth} > ${element.clientWidth}`, element);
    }
  };

  const checkOverlaps = () => {
    const main = [...document.querySelectorAll('header, nav, main > *, footer')].map(e => [e, e.getBoundingClientRect()]);
    for (let i = 1; i < main.length; ++i) {
      if (main[i][1].top < main[i - 1][1].bottom - 0.5) tell('begins above the end of what is before it:', main[i][0]);
    }
    for (const parent of document.body.querySelectorAll('*')) {
      if (parent.closest('svg') !== null || parent.closest('thead') !== null) continue;
      const boxes = [...parent.children].filter(c => getComputedStyle(c).display !== 'inline').map(c => [c, c.getBoundingClientRect()]);
      for (let i = 1; i < boxes.length; ++i) {
        if (overlap(boxes[i - 1][1], boxes[i][1], 1)) tell('lies over its neighbour:', boxes[i][0]);
      }
    }
    for (const svg of document.querySelectorAll('svg')) {
      const frame = svg.getBoundingClientRect();
      const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]).sort((a, b) => a[1].top - b[1].top);
      for (let i = 0; i < texts.length; ++i) {
        const box = texts[i][1];
        if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) tell('text is cut off:', texts[i][0]);
        for (let j = i + 1; j < texts.length && texts[j][1].top < box.bottom - 2; ++j) {
          if (overlap(box, texts[j][1], 2)) tell(`text lies over "${texts[j][0].textContent}":`, texts[i][0]);
        }
      }
    }
  };

  const channels = colour => {
    const parts = (colour.match(/[\d.]+/g) || []).map(Number);
    return parts.length >= 3 && (parts.length < 4 || parts[3] === 1) ? parts.slice(0, 3) : null;
  };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const paperBehind = element => {
    for (let e = element; e !== null; e = e.parentElement) {
      const rgb = channels(getComputedStyle(e).backgroundColor);
      if (rgb !== null) return rgb;
    }
    return [255, 255, 255];
  };

  const checkContrast = () => {
    for (const element of document.body.querySelectorAll('*')) {
      const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim() !== '');
      if (!own || element.closest('title, style, script') !== null) continue;
      const style = getComputedStyle(element);
      const text = element instanceof SVGElement;
      const ink = channels(text ? style.fill : style.color);
      const box = text && element.parentElement.tagName === 'g' ? element.parentElement.querySelector('rect') : null;
      const paper = box ? channels(getComputedStyle(box).fill) : paperBehind(element);
      if (ink === null || paper === null) { tell('colours are not known:', element); continue; }
      const ratio = contrast(ink, paper);
      if (ratio < 4.5) tell(`contrast is ${ratio.toFixed(2)}:`, element);
    }
  };

  const checkKeyboard = () => {
    for (const element of document.querySelectorAll('.scroll, a, summary')) {
      element.focus({preventScroll: true});
      if (document.activeElement !== element) tell('cannot be reached with the keyboard:', element);
    }
    for (const element of document.body.querySelectorAll('*')) {
      const scrolls = ['auto', 'scroll'].includes(getComputedStyle(element).overflowX) && element.scrollWidth > element.clientWidth;
      if (scrolls && element.tabIndex < 0) tell('scrolls, but not with the keyboard:', element);
    }
  };

  window.addEventListener('load', () => {
    checkOverflow();
    checkOverlaps();
    checkContrast();
    for (const details of document.querySelectorAll('details')) details.open = true;
    checkKeyboard();
    checkOverflow();
    checkOverlaps();
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    parent.postMessage({page: document.title, size: `${innerWidth}x${innerHeight}`, dark, findings,
                        texts: document.querySelectorAll('svg text').length}, '*');
  });
})();
