// @ts-check
// All our browser code; Dash starts once this is loaded (dashboards/shell.py). The
// globals are where Dash and dash-ag-grid look for functions by name.
import { mountCharts } from "./charts/mount.js";
import { mountComparison } from "./compare/mount.js";
import { watchFiles } from "./files.js";
import { unfoldLinked } from "./navigation.js";
import { listenForNotes } from "./notes.js";
import * as shell from "./shell.js";
import { Place, saved } from "./tables.js";
import { mountTimelines } from "./timeline/mount.js";

const page = /** @type {any} */ (window);
Object.assign((page.dash_clientside ??= {}), { shell });
Object.assign((page.dashAgGridFunctions ??= {}), { saved });
Object.assign((page.dashAgGridComponentFunctions ??= {}), { Place });

mountCharts();
mountTimelines();
mountComparison();
watchFiles();
listenForNotes();
unfoldLinked();
