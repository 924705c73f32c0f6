// Where Dash and dash-ag-grid look for functions by name, and what they provide.
interface Window {
  dash_clientside: {
    no_update: unknown;
    set_props(id: string, props: Record<string, unknown>): void;
  };
  React: {
    createElement(tag: unknown, props: object, ...children: unknown[]): unknown;
    lazy(load: () => Promise<{ default: unknown }>): unknown;
    Suspense: unknown;
  };
  dash_ag_grid: { AgGrid: unknown };
}
