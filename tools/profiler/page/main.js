// Starts the page. `ready` holds the milliseconds from the start of loading to the end of the first drawn frame.

let ready = 0;

function showProblem(text) {
  const problem = document.getElementById("problem");
  problem.hidden = false;
  problem.textContent = plain(text);
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    showProblem("This browser cannot unpack the trace: it has no DecompressionStream. Browsers from 2023 on have it.");
    return;
  }
  const holder = document.getElementById("data");
  const bytes = await unpack(holder.textContent);
  holder.textContent = "";
  readTrace(bytes);
  if (trace.ranks > 1) GUTTER += RANK;
  const box = canvas.getBoundingClientRect();
  size.width = box.width;
  size.height = box.height;
  listenToChart();
  listenToControls();
  showSummary();
  applyState();
  drawChart();
  drawOverview();
  ready = performance.now();
}

start().catch((error) => {
  showProblem("The trace in this page cannot be shown: " + error.message);
  throw error;
});
