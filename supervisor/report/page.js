// Draws the charts of the page in its own colours: again when those change, and as wide as the paper before it is printed.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const PAPER_WIDTH = 690; // of A4 and of Letter, without margins
  const NARROW_WIDTH = 640;
  const FROM_OUTSIDE = new Set(["x", "y", "text", "customdata", "base", "categoryarray"]);
  const config = { responsive: true, displayModeBar: false };

  /** The same with the page's colours in the places of their names. */
  function coloured(value, style) {
    if (typeof value === "string" && value.startsWith("var(--")) {
      return style.getPropertyValue(value.slice(4, -1)).trim();
    }
    if (Array.isArray(value)) {
      return value.map((one) => coloured(one, style));
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, one]) => [key, FROM_OUTSIDE.has(key) ? one : coloured(one, style)]),
      );
    }
    return value;
  }

  function draw(width) {
    const style = getComputedStyle(root);
    for (const [name, figure] of Object.entries(figures)) {
      const place = document.getElementById(`chart-${name}`);
      const layout = coloured(figure.layout, style);
      if (width !== undefined) {
        Object.assign(layout, { width, autosize: false });
      } else if (place.clientWidth < NARROW_WIDTH) {
        layout.font.size = 11;
        layout.margin = { ...layout.margin, l: 8, r: 6 };
      }
      if (matchMedia("(pointer: coarse)").matches) {
        layout.dragmode = false; // a finger scrolls the page
      }
      Plotly.react(place, coloured(figure.data, style), layout, config);
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    root.dataset.print = "";
    draw(PAPER_WIDTH);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.print;
    draw();
  });
  draw();
})();
