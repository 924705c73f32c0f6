// @ts-check
// All our browser code; Dash starts once this is loaded (dashboards/shell.py). The globals are where
// Dash and dash-ag-grid look for functions by name. What draws tables, charts and timelines is loaded
// as soon as a page has one.
import { watchFiles } from "./files.js";
import { mount } from "./mounting.js";
import { unfoldLinked } from "./navigation.js";
import { listenForNotes } from "./notes.js";
import * as shell from "./shell.js";
import { Place, loadGridLate, saved } from "./tables.js";

export { loadGridLate };

const page = /** @type {any} */ (window);
Object.assign((page.dash_clientside ??= {}), { shell });
Object.assign((page.dashAgGridFunctions ??= {}), { saved });
Object.assign((page.dashAgGridComponentFunctions ??= {}), { Place });

mount("[data-plots]", async () => (await import("./charts/mount.js")).chartOf);
mount("#timeline", async () => (await import("./timeline/mount.js")).timelineOf);
mount("#compare-timelines", async () => (await import("./compare/timelines.js")).comparisonOf);
watchFiles();
listenForNotes();
unfoldLinked();
shell.listen();
