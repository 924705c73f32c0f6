"""The web application: pages, data, and access to them."""
