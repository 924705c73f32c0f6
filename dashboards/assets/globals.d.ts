// Where Dash and dash-ag-grid look for functions by name, and what they provide.
interface Window {
  dash_clientside: {
    no_update: unknown;
    set_props(id: string, props: Record<string, unknown>): void;
  };
  React: { createElement(tag: string, props: object, ...children: unknown[]): unknown };
}
