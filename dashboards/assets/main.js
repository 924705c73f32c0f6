// All of ours that runs in the browser; Dash starts once this is loaded (dashboards/shell.py). The
// two globals are where Dash and dash-ag-grid look for functions by name.
import * as shell from "./shell.js";
import { saved } from "./tables.js";
import { mountTimelines } from "./timeline/mount.js";

Object.assign((window.dash_clientside ??= {}), { shell });
Object.assign((window.dashAgGridFunctions ??= {}), { saved });

mountTimelines();
