// What mouse and keyboard do to the timeline.
(() => {
  const WHEEL = 1.0018; // zoom per unit of the wheel
  const LINE = 20; // pixels, for wheels that count lines
  const PINCH = 5; // two fingers on a touchpad move it less
  const CLICK_PIXELS = 4; // how far the mouse may move in a click
  const PAN = 0.15; // of the view

  const isText = (element) =>
    element instanceof Element && element.closest("input, textarea, select, [contenteditable]");

  window.traceprofTimelineInput = (timeline) => {
    const { panel, pointer, GUTTER } = timeline;
    const { canvas, scroller, query } = panel;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };

    // -- mouse ----------------------------------------------------------------------------------

    canvas.addEventListener("wheel", (event) => {
      const [x] = place(event);
      if (x < GUTTER || event.altKey || !timeline.view) return; // scrolls the rows
      event.preventDefault();
      const scale = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE : 1;
      const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        timeline.pan((sideways * scale) / timeline.painter.plotWidth);
        return;
      }
      const pinch = event.ctrlKey ? PINCH : 1;
      timeline.zoom(WHEEL ** (event.deltaY * scale * pinch), timeline.timeAt(x));
    }, { passive: false });

    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !timeline.view) return;
      const [x, y] = place(event);
      drag = { x, y, view: { ...timeline.view }, scroll: scroller.scrollTop, moved: false };
      drag.selects = event.shiftKey && x >= GUTTER;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (!drag) {
        pointer.move(x, y, event.clientX, event.clientY);
        return;
      }
      drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > CLICK_PIXELS;
      if (!drag.moved) return;
      pointer.forget();
      pointer.last = null;
      pointer.x = Math.max(x, GUTTER);
      if (drag.selects) {
        timeline.chosen = { from: drag.x, to: Math.max(x, GUTTER) };
        timeline.refresh();
        return;
      }
      canvas.style.cursor = "grabbing";
      scroller.scrollTop = drag.scroll - (y - drag.y);
      const moved = ((x - drag.x) / timeline.painter.plotWidth) * drag.view.span;
      timeline.setView({ start: drag.view.start - moved, span: drag.view.span });
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = place(event);
      const { chosen } = timeline;
      timeline.chosen = null;
      if (drag && !drag.moved) pointer.click(x, y);
      else if (chosen) {
        const [start, end] = [chosen.from, chosen.to].sort((a, b) => a - b).map((each) =>
          timeline.timeAt(each));
        timeline.frame(start, end, 1);
      }
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => {
      drag = timeline.chosen = null;
      timeline.refresh();
    });
    canvas.addEventListener("pointerleave", () => drag || pointer.leave());
    canvas.addEventListener("dblclick", () => timeline.fit());

    // -- keyboard -------------------------------------------------------------------------------

    const middle = () => pointer.x ?? GUTTER + timeline.painter.plotWidth / 2;
    const zoom = (factor) => timeline.zoom(factor, timeline.timeAt(middle()));
    const scroll = (rows) => { scroller.scrollTop += rows * 26; };
    const keys = {
      w: () => zoom(0.7), "+": () => zoom(0.7), "=": () => zoom(0.7),
      s: () => zoom(1 / 0.7), "-": () => zoom(1 / 0.7),
      a: () => timeline.pan(-PAN), d: () => timeline.pan(PAN),
      arrowleft: () => timeline.pan(-PAN), arrowright: () => timeline.pan(PAN),
      arrowup: () => scroll(-1), arrowdown: () => scroll(1),
      pageup: () => scroll(-10), pagedown: () => scroll(10),
      home: () => timeline.home(), f: () => timeline.fit(),
      n: () => timeline.search("next"), p: () => timeline.search("previous"),
      "/": () => { query.focus(); query.select(); },
      escape: () => timeline.deselect(),
    };
    const onKey = (event) => {
      if (!timeline.root.isConnected) {
        document.removeEventListener("keydown", onKey);
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isText(event.target)) return;
      const act = keys[event.key.toLowerCase()];
      if (!act || !timeline.view) return;
      event.preventDefault();
      act();
    };
    document.addEventListener("keydown", onKey);

    let typing = null;
    query.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => {
        timeline.count();
        timeline.note();
      }, 200);
    });
    query.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        clearTimeout(typing);
        timeline.search(event.shiftKey ? "previous" : "next");
      } else if (event.key === "Escape") {
        event.preventDefault(); // which would empty it: N and P go on with it
        panel.names.hidden = true;
        canvas.focus();
      }
    });
    query.addEventListener("blur", () => setTimeout(() => { panel.names.hidden = true; }, 200));
  };
})();
